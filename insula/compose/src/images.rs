//! Planning the images: comparing those that files describe with the resident ones.

use std::collections::{BTreeMap, BTreeSet};

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::name::Name;
use insula_image::{
    AddRequest, BUILT_IN, Content, Description, Files, Initrd, Prepared, build_initrd,
    built_in_description, installed,
};

use super::current_state::CurrentState;
use super::diagnostic::Diagnostic;
use super::project::{Project, WantedImage, WantedKernel};
use super::report::{Action, ImageReport};

/// An image, and the planned action.
#[derive(Debug)]
pub struct ImageStep {
    /// Name of the image.
    pub name: Name,
    /// Its project.
    pub project: Name,
    /// The action.
    pub action: ImageAction,
}

/// Action on an image.
#[derive(Debug)]
pub enum ImageAction {
    /// None: an equal one is resident.
    Keep,
    /// Make it resident.
    Add(Box<Prepared>),
    /// Make it resident, replacing one of the same project.
    Replace(Box<Prepared>),
    /// Remove it: the file does not describe it any more.
    Remove,
}

impl ImageStep {
    /// The action as reported.
    #[must_use]
    pub fn report(&self) -> ImageReport {
        ImageReport {
            name: self.name.clone(),
            project: self.project.clone(),
            action: match self.action {
                ImageAction::Keep => Action::Keep,
                ImageAction::Add(_) => Action::Add,
                ImageAction::Replace(_) => Action::Replace,
                ImageAction::Remove => Action::Remove,
            },
        }
    }
}

/// Plans all images: reads their files and compares them with the resident ones.
///
/// # Errors
/// All errors in them.
pub(super) fn steps(
    root: &Root,
    projects: &[Project],
    current: &CurrentState,
) -> Result<Vec<ImageStep>, Vec<Diagnostic>> {
    let mut steps = Vec::new();
    let mut diagnostics = Vec::new();
    let mut wanted = BTreeMap::new();
    for (project, image) in each(projects) {
        match step(root, project, image, current, &mut wanted) {
            Ok(action) => steps.extend(action.map(|action| ImageStep {
                name: image.name.clone(),
                project: project.name.clone(),
                action,
            })),
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    if !diagnostics.is_empty() {
        return Err(diagnostics);
    }
    let nodes = projects.iter().flat_map(|project| &project.nodes);
    let named: BTreeSet<&Name> = nodes.map(|node| &node.image).collect();
    let is_needed = |name: &Name| wanted.contains_key(name) || named.contains(name);
    for project in projects {
        let gone = removable(project.name.clone(), current);
        let gone = gone.filter(|name| !is_needed(name));
        steps.extend(gone.map(|name| ImageStep {
            name: name.clone(),
            project: project.name.clone(),
            action: ImageAction::Remove,
        }));
    }
    Ok(steps)
}

/// The images that a project has added, except those that nodes of other projects were started
/// from: such a node may have to be started again.
pub(super) fn removable(project: Name, current: &CurrentState) -> impl Iterator<Item = &Name> {
    let all = current.images_of(&project).collect::<Vec<_>>();
    let is_used = move |name: &Name| current.is_used_by_others(name, &project);
    all.into_iter().filter(move |name| !is_used(name))
}

fn each<'a>(projects: &'a [Project]) -> impl Iterator<Item = (&'a Project, &'a WantedImage)> {
    let its = |project: &'a Project| project.images.iter().map(move |image| (project, image));
    projects.iter().flat_map(its)
}

/// Plans an image; `None` when another file describes the same one.
fn step<'a>(
    root: &Root,
    project: &Project,
    image: &'a WantedImage,
    current: &CurrentState,
    wanted: &mut BTreeMap<&'a Name, Content>,
) -> Result<Option<ImageAction>, Diagnostic> {
    let name = &image.name;
    let diagnostic =
        |message, hint: &str| project.source.diagnostic(image.spans.at(""), message, hint);
    let (request, initrd) = request(root, project, image)?;
    let content = Content::read(&request, initrd.as_ref());
    let content = content.map_err(|error| files_diagnostic(project, image, &error))?;
    match wanted.insert(name, content.clone()) {
        Some(other) if other == content => return Ok(None),
        Some(_) => {
            let message =
                format!("another file describes an image '{name}' with different content");
            return Err(diagnostic(message, "give one of them another name"));
        }
        None => {}
    }
    let is_ours = |there: &Description| there.project.as_deref() == Some(project.name.as_str());
    let prepare = || prepare(project, image, &request, initrd);
    match current.images.get(name) {
        Some(Some(there)) if there.content() == content => Ok(Some(ImageAction::Keep)),
        None => Ok(Some(ImageAction::Add(prepare()?))),
        Some(Some(there)) if is_ours(there) => Ok(Some(ImageAction::Replace(prepare()?))),
        Some(_) => {
            let message = format!(
                "there already is an image '{name}' with different content, which was not added by \
                 this project"
            );
            let hint = format!("use another name, or remove it with `insula image rm {name}`");
            Err(diagnostic(message, &hint))
        }
    }
}

/// The request to make the image resident, with its initrd.
fn request(
    root: &Root,
    project: &Project,
    image: &WantedImage,
) -> Result<(AddRequest, Option<Initrd>), Diagnostic> {
    let in_files = |error: Error| files_diagnostic(project, image, &error);
    let (files, initrd) = match &image.kernel {
        WantedKernel::Agent(release, agent) => {
            let kernel = installed(root, release).map_err(in_files)?.kernel;
            let built = build_initrd(root, &kernel, agent);
            let built =
                built.map_err(|error| project.source.diagnostic_from(image.kernel_at(), &error))?;
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

/// The files, with the initrd that they name.
fn read(files: Result<Files, Error>) -> Result<(Files, Option<Initrd>), Error> {
    let files = files?;
    let initrd = Initrd::read(&files)?;
    Ok((files, initrd))
}

fn prepare(
    project: &Project,
    image: &WantedImage,
    request: &AddRequest,
    initrd: Option<Initrd>,
) -> Result<Box<Prepared>, Diagnostic> {
    let prepared = Prepared::new(request, initrd).map_err(|error| match error.kind {
        Kind::Kernel | Kind::Initrd => files_diagnostic(project, image, &error),
        _ => project.source.diagnostic_from(image.spans.at(""), &error),
    })?;
    Ok(Box::new(prepared))
}

fn files_diagnostic(project: &Project, image: &WantedImage, error: &Error) -> Diagnostic {
    let at = match error.kind {
        Kind::Initrd => image.initrd_at(),
        _ => image.kernel_at(),
    };
    project.source.diagnostic_from(at, error)
}

/// Bytes of memory that the images to be added take.
pub(super) fn size(steps: &[ImageStep]) -> u64 {
    let sizes = steps.iter().map(|step| match &step.action {
        ImageAction::Add(prepared) | ImageAction::Replace(prepared) => {
            prepared.description.layout.size
        }
        ImageAction::Keep | ImageAction::Remove => 0,
    });
    sizes.sum()
}

/// The built-in image, if a node asks for it. One that is not installed, or damaged, is none.
pub(super) fn built_in(projects: &[Project]) -> Option<(Name, Description)> {
    let mut nodes = projects.iter().flat_map(|project| &project.nodes);
    let node = nodes.find(|node| node.image.as_str() == BUILT_IN)?;
    let description = built_in_description(&node.image).ok()?;
    Some((node.image.clone(), description))
}

/// Descriptions of the images that nodes can be started from once `steps` are done. Others of its name
/// take precedence over the built-in one.
pub(super) fn startable<'a>(
    steps: &'a [ImageStep],
    current: &'a CurrentState,
    built_in: Option<&'a (Name, Description)>,
) -> BTreeMap<&'a Name, &'a Description> {
    let mut all: BTreeMap<_, _> = built_in
        .into_iter()
        .map(|(name, image)| (name, image))
        .collect();
    let resident = current.images.iter();
    all.extend(resident.filter_map(|(name, image)| Some((name, image.as_ref()?))));
    for step in steps {
        match &step.action {
            ImageAction::Keep => {}
            ImageAction::Add(prepared) | ImageAction::Replace(prepared) => {
                all.insert(&step.name, &prepared.description);
            }
            ImageAction::Remove => {
                all.remove(&step.name);
            }
        }
    }
    all
}
