//! What must be done so that the images are those that are asked for.

use std::collections::{BTreeMap, BTreeSet};

use super::deed::{Deed, ImageReport};
use super::mistake::Mistake;
use super::present::Present;
use super::project::{Project, WantedImage, WantedKernel};
use crate::image::{
    AddError, AddRequest, Content, Description, Files, FilesError, Initrd, Prepared, build_initrd,
    installed,
};
use crate::name::Name;
use crate::root::Root;

/// An image, and what is to be done about it.
#[derive(Debug)]
pub struct ImageStep {
    /// Its name.
    pub name: Name,
    /// The project.
    pub project: Name,
    /// What is to be done.
    pub deed: ImageDeed,
}

/// What is to be done about an image.
#[derive(Debug)]
pub enum ImageDeed {
    /// Nothing: an equal one is resident.
    Keep,
    /// Make it resident.
    Add(Box<Prepared>),
    /// Make it resident in the place of one of the same project.
    Replace(Box<Prepared>),
    /// Remove it: the file asks for it no more.
    Remove,
}

impl ImageStep {
    /// What is to be done, in a word.
    #[must_use]
    pub fn report(&self) -> ImageReport {
        ImageReport {
            name: self.name.clone(),
            project: self.project.clone(),
            deed: match self.deed {
                ImageDeed::Keep => Deed::Keep,
                ImageDeed::Add(_) => Deed::Add,
                ImageDeed::Replace(_) => Deed::Replace,
                ImageDeed::Remove => Deed::Remove,
            },
        }
    }
}

/// Reads the files of all images, and compares them with those that are resident.
///
/// # Errors
/// All that is wrong with them.
pub(super) fn steps(
    root: &Root,
    projects: &[Project],
    present: &Present,
) -> Result<Vec<ImageStep>, Vec<Mistake>> {
    let mut steps = Vec::new();
    let mut mistakes = Vec::new();
    let mut wanted = BTreeMap::new();
    for (project, image) in each(projects) {
        match step(root, project, image, present, &mut wanted) {
            Ok(deed) => steps.extend(deed.map(|deed| ImageStep {
                name: image.name.clone(),
                project: project.name.clone(),
                deed,
            })),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let nodes = projects.iter().flat_map(|project| &project.nodes);
    let named: BTreeSet<&Name> = nodes.map(|node| &node.image).collect();
    let is_needed = |name: &Name| wanted.contains_key(name) || named.contains(name);
    for project in projects {
        let gone = removable(project.name.clone(), present);
        let gone = gone.filter(|name| !is_needed(name));
        steps.extend(gone.map(|name| ImageStep {
            name: name.clone(),
            project: project.name.clone(),
            deed: ImageDeed::Remove,
        }));
    }
    Ok(steps)
}

/// The images that a project has added and that no node of others was started from: such a node may
/// have to be started anew.
pub(super) fn removable(project: Name, present: &Present) -> impl Iterator<Item = &Name> {
    let all = present.images_of(&project).collect::<Vec<_>>();
    let is_used = move |name: &Name| present.is_used_by_others(name, &project);
    all.into_iter().filter(move |name| !is_used(name))
}

fn each<'a>(projects: &'a [Project]) -> impl Iterator<Item = (&'a Project, &'a WantedImage)> {
    let its = |project: &'a Project| project.images.iter().map(move |image| (project, image));
    projects.iter().flat_map(its)
}

/// What is to be done about an image; nothing when another file asks for the same.
fn step<'a>(
    root: &Root,
    project: &Project,
    image: &'a WantedImage,
    present: &Present,
    wanted: &mut BTreeMap<&'a Name, Content>,
) -> Result<Option<ImageDeed>, Mistake> {
    let name = &image.name;
    let mistake = |message, help: &str| project.source.mistake(image.at.clone(), message, help);
    let (request, initrd) = request(root, project, image)?;
    let content = Content::read(&request, initrd.as_ref());
    let content = content.map_err(|error| files_mistake(project, image, &error))?;
    match wanted.insert(name, content.clone()) {
        Some(other) if other == content => return Ok(None),
        Some(_) => {
            let message = format!("another file has an image '{name}' with other content");
            return Err(mistake(message, "give one of them another name"));
        }
        None => {}
    }
    let is_ours = |there: &Description| there.project.as_deref() == Some(project.name.as_str());
    let prepare = || prepare(project, image, &request, initrd);
    match present.images.get(name) {
        Some(Some(there)) if there.content() == content => Ok(Some(ImageDeed::Keep)),
        None => Ok(Some(ImageDeed::Add(prepare()?))),
        Some(Some(there)) if is_ours(there) => Ok(Some(ImageDeed::Replace(prepare()?))),
        Some(_) => {
            let message = format!(
                "there is an image '{name}' already, with other content, which this project has \
                 not added"
            );
            let help = format!("choose another name, or remove it with `insula image rm {name}`");
            Err(mistake(message, &help))
        }
    }
}

/// What is to be made resident, with its initrd.
fn request(
    root: &Root,
    project: &Project,
    image: &WantedImage,
) -> Result<(AddRequest, Option<Initrd>), Mistake> {
    let in_files = |error: FilesError| files_mistake(project, image, &error);
    let (files, initrd) = match &image.kernel {
        WantedKernel::Agent(release, agent) => {
            let kernel = installed(root, release).map_err(in_files)?.kernel;
            let built = build_initrd(root, &kernel, agent);
            let built = built
                .map_err(|error| project.source.mistake_by(image.kernel_at.clone(), &error))?;
            let initrd = None;
            (Files { kernel, initrd }, Some(built))
        }
        WantedKernel::Installed(release) => read(installed(root, release)).map_err(in_files)?,
        WantedKernel::Files(files) => read(Ok(files.clone())).map_err(in_files)?,
    };
    let request = AddRequest {
        name: image.name.clone(),
        files,
        append: image.append.clone(),
        payload: image.payload,
        project: Some(project.name.clone()),
    };
    Ok((request, initrd))
}

/// Files, with the initrd that they name.
fn read(files: Result<Files, FilesError>) -> Result<(Files, Option<Initrd>), FilesError> {
    let files = files?;
    let initrd = Initrd::read(&files)?;
    Ok((files, initrd))
}

fn prepare(
    project: &Project,
    image: &WantedImage,
    request: &AddRequest,
    initrd: Option<Initrd>,
) -> Result<Box<Prepared>, Mistake> {
    let prepared = Prepared::new(request, initrd).map_err(|error| match &error {
        AddError::Files(error) => files_mistake(project, image, error),
        _ => project.source.mistake_by(image.at.clone(), &error),
    })?;
    Ok(Box::new(prepared))
}

fn files_mistake(project: &Project, image: &WantedImage, error: &FilesError) -> Mistake {
    let at = match error {
        FilesError::Initrd { .. } => &image.initrd_at,
        _ => &image.kernel_at,
    };
    project.source.mistake_by(at.clone(), error)
}

/// Bytes of memory that the images take which are still to be made resident.
pub(super) fn size(steps: &[ImageStep]) -> u64 {
    let sizes = steps.iter().map(|step| match &step.deed {
        ImageDeed::Add(prepared) | ImageDeed::Replace(prepared) => prepared.description.layout.size,
        ImageDeed::Keep | ImageDeed::Remove => 0,
    });
    sizes.sum()
}

/// What is known of each image that nodes can be started from once `steps` are done: those, and the
/// resident ones that they leave.
pub(super) fn startable<'a>(
    steps: &'a [ImageStep],
    present: &'a Present,
) -> BTreeMap<&'a Name, &'a Description> {
    let resident = present.images.iter();
    let resident = resident.filter_map(|(name, image)| Some((name, image.as_ref()?)));
    let mut all: BTreeMap<_, _> = resident.collect();
    for step in steps {
        match &step.deed {
            ImageDeed::Keep => {}
            ImageDeed::Add(prepared) | ImageDeed::Replace(prepared) => {
                all.insert(&step.name, &prepared.description);
            }
            ImageDeed::Remove => {
                all.remove(&step.name);
            }
        }
    }
    all
}
