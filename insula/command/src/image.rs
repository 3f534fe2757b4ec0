//! `insula image`.

pub(crate) mod view;

use std::process::ExitCode;

use insula_base::units::Size;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_image::{
    self as image, AddRequest, BuildFiles, BuildRequest, Description, Files, Listing, LogSource,
    SavedContent, SnapshotImage,
};

use super::cli::{Image, ImageAdd, ImageBuild};
use super::prune::prune_images;
use super::{Context, Failure, output};
use crate::report::{Align, Table};
use view::{ImageDetails, ImageView, InspectedImage, KernelView, SnapshotView};

pub(super) fn image(context: &Context, command: Image) -> Result<ExitCode, Failure> {
    match command {
        Image::Add(options) => add(context, options),
        Image::Build(options) => build(context, options),
        Image::Ls { json } => list(&context.driver()?, json),
        Image::Inspect { names, .. } => inspect(&context.driver()?, &names),
        Image::Save { name, output } => {
            let image = image::open_any(&context.driver()?, &name)?;
            Ok(image::save(image, &output)?)
        }
        Image::Load { input, name, json } => {
            let (name, loaded) = image::load(&context.driver()?, &input, name.as_ref())?;
            match loaded {
                SavedContent::Kernel(loaded) => added(&name, &loaded, json),
                SavedContent::Snapshot(loaded) if json => {
                    let view = SnapshotView::new(&name, &loaded);
                    output::json(&ImageDetails::Snapshot(view))
                }
                SavedContent::Snapshot(_) => output::line(name.as_str()),
            }
        }
        Image::Rm { names } => names.iter().try_for_each(|name| remove(context, name)),
        Image::Prune => return prune_images(context),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Removes an image, and what is only there for it.
pub(super) fn remove(context: &Context, name: &Name) -> Result<(), Failure> {
    let driver = context.driver()?;
    let removed = image::remove(&driver, name);
    insula_node::remove_unused_disks(&driver, &context.root);
    Ok(removed?)
}

/// The names of all images.
pub(super) fn names(driver: &Driver) -> Result<Vec<Name>, Failure> {
    let Listing {
        images, snapshots, ..
    } = image::list(driver)?;
    let images = images.into_iter().map(|image| image.name);
    let snapshots = snapshots.into_iter().map(|image| image.name);
    Ok(images.chain(snapshots).collect())
}

fn add(context: &Context, options: ImageAdd) -> Result<(), Failure> {
    let ImageAdd {
        name,
        files,
        installed,
        append,
        layout,
        json,
    } = options;
    let files = match (installed, files.kernel) {
        (Some(release), _) => image::installed(&context.root, &release)?,
        (None, kernel) => Files {
            kernel: kernel.unwrap_or_default(),
            initrd: files.initrd,
        },
    };
    let driver = context.driver()?;
    let payload = layout;
    let request = AddRequest {
        name: name.clone(),
        files,
        append,
        payload,
        project: None,
    };
    added(&name, &image::add(&driver, &request)?, json)
}

fn build(context: &Context, options: ImageBuild) -> Result<(), Failure> {
    let ImageBuild {
        name,
        installed,
        module_folder,
        content,
        criu,
        append,
        layout,
        json,
    } = options;
    let request = BuildRequest {
        name: name.clone(),
        release: installed,
        files: BuildFiles {
            module_folder,
            content,
            criu,
        },
        append,
        payload: layout,
    };
    let built = image::build(&context.driver()?, &context.root, &request)?;
    added(&name, &built, json)
}

/// Reports a new image.
fn added(name: &Name, description: &Description, json: bool) -> Result<(), Failure> {
    if let LogSource::Unreadable(reason) = &description.log {
        output::note(&format!(
            "the log of its nodes will not be readable: {reason}"
        ));
    }
    if json {
        output::json(&ImageDetails::kernel(name, description))
    } else {
        output::line(name.as_str())
    }
}

fn list(driver: &Driver, as_json: bool) -> Result<(), Failure> {
    let Listing {
        images,
        snapshots,
        unreadable,
    } = image::list(driver)?;
    for (_, error) in &unreadable {
        output::print_error(error);
    }
    if as_json {
        let kernels = images
            .iter()
            .map(|image| ImageView::Kernel(KernelView::new(&image.name, &image.description)));
        let snapshots = snapshots
            .iter()
            .map(|image| ImageView::Snapshot(SnapshotView::new(&image.name, &image.description)));
        return output::json(&kernels.chain(snapshots).collect::<Vec<_>>());
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("KIND", Align::Left),
        ("RELEASE", Align::Left),
        ("LAYOUT", Align::Left),
        ("SIZE", Align::Right),
        ("APPEND", Align::Left),
    ]);
    for image in &images {
        let Description {
            loadable,
            payload,
            layout,
            append,
            ..
        } = &image.description;
        table.row([
            image.name.to_string(),
            "kernel".to_owned(),
            loadable.release.clone(),
            word(payload),
            Size(layout.size).to_string(),
            append.clone(),
        ]);
    }
    for SnapshotImage {
        name, description, ..
    } in &snapshots
    {
        table.row([
            name.to_string(),
            "snapshot".to_owned(),
            description.release.clone(),
            "-".to_owned(),
            Size(description.size()).to_string(),
            String::new(),
        ]);
    }
    output::print(&table.to_string())
}

fn inspect(driver: &Driver, names: &[Name]) -> Result<(), Failure> {
    let opened = names.iter().map(|name| image::open_any(driver, name));
    let images = opened.collect::<Result<Vec<_>, _>>()?;
    let all = images.iter().map(InspectedImage::new);
    output::json(&all.collect::<Result<Vec<_>, _>>()?)
}

/// The name that JSON has for it.
fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
