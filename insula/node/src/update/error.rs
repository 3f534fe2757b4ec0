//! The errors of updates.

use insula_base::error::{Error, Kind, Source};
use insula_base::units::Size;
use insula_driver::channel::ChannelError;
use insula_driver::name::Name;
use nix::errno::Errno;

/// What stays after a step that failed half-way.
const STAYS: &str = "what was added stays with the node until it is removed";

/// Why a step was not executed.
#[derive(Debug)]
pub(super) struct StepError {
    /// Whether the node's kernel is as before the step.
    pub(super) is_rolled_back: bool,
    /// What the user is told.
    pub(super) error: Error,
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self {
            is_rolled_back: false,
            error,
        }
    }
}

impl From<StepError> for Error {
    fn from(step: StepError) -> Self {
        step.error
    }
}

impl StepError {
    fn rolled_back(error: Error) -> Self {
        Self {
            is_rolled_back: true,
            error,
        }
    }

    /// The node's kernel refused; `what` follows "to".
    pub(super) fn refused(name: &Name, what: &str, why: Errno) -> Self {
        let what = format!("the kernel of the node '{name}' refused to {what}");
        let hint = format!("`insula logs --tail 20 {name}` may show the cause");
        let error = Error::new(what).because(why.desc());
        Self::rolled_back(error.leaving("nothing was changed").hint(hint))
    }

    /// The back ends of its devices cannot switch to the new memory.
    pub(super) fn devices(name: &Name, why: Source) -> Self {
        let what = format!("the devices of the node '{name}' cannot switch to other memory");
        let hint = format!("`insula inspect {name}` shows its devices");
        let error = Error::new(what).because(why);
        Self::rolled_back(error.leaving("nothing was changed").hint(hint))
    }

    /// The same refusal, of a step that was to revert others.
    pub(super) fn into_rollback_failed(self) -> Self {
        match self.is_rolled_back {
            true => self
                .error
                .leaving("what was added so far stays with the node until it is removed")
                .hint("update it again, or restart it")
                .into(),
            false => self,
        }
    }
}

/// A copy has the cores and the memory that its node had.
pub(super) fn is_copy(name: &Name) -> Error {
    Error::new(format!(
        "the node '{name}' is a copy, which cannot be updated"
    ))
    .unchanged()
    .hint("update a node before its snapshot is taken")
}

pub(super) fn not_running(name: &Name) -> Error {
    Error::of(
        Kind::NotRunning,
        format!("the node '{name}' is not running"),
    )
    .nothing_kept()
    .hint("only a running node can be updated; remove a stopped one and start another")
}

/// No core would be left.
pub(super) fn no_core(name: &Name) -> Error {
    Error::new(format!("the node '{name}' cannot give up its boot core"))
        .untouched()
        .hint(format!("stop it with `insula stop {name}`"))
}

/// Its tables do not list as many cores.
pub(super) fn no_room(name: &Name, requested: u64, max: u64) -> Error {
    Error::new(format!(
        "the node '{name}' cannot have {requested} cores: it was started with room for {max}"
    ))
    .untouched()
    .hint(format!(
        "start it again with room to grow: `insula run --max-cpus {requested}`"
    ))
}

/// Not enough cores are free.
pub(super) fn taken(name: &Name, requested: u32, free: usize) -> Error {
    Error::new(format!(
        "{requested} more cores were requested, but only {free} of those that the node '{name}' \
         can have are free"
    ))
    .nothing_kept()
    .hint("request fewer, or stop a node: `insula machine info` shows the owner of each core")
}

pub(super) fn contended() -> Error {
    Error::new("other processes took the chosen cores several times in a row")
        .nothing_kept()
        .hint("try again when fewer nodes are being started")
}

/// The size is not a multiple of the block size.
pub(super) fn no_multiple(name: &Name, requested: Size, block: Size) -> Error {
    Error::new(format!(
        "the kernel of the node '{name}' adds and removes memory in blocks of {block}: \
         {requested} is not a multiple"
    ))
    .untouched()
    .hint("request a multiple of it")
}

/// More than was added would be removed.
pub(super) fn started_with(name: &Name, added: Size) -> Error {
    Error::new(format!(
        "the node '{name}' can only give up the {added} of memory that was added to it"
    ))
    .untouched()
    .hint("request no more than that, in the sizes in which it was added")
}

/// The base cannot free whole blocks.
pub(super) fn no_blocks(requested: Size, block: Size) -> Error {
    Error::new(format!(
        "{requested} of memory could not be allocated in whole blocks of {block}, which the \
         node's kernel needs: the base has too much of it in use"
    ))
    .nothing_kept()
    .hint("request less, or reserve it early after boot with `insula machine reserve --memory`")
}

pub(super) fn no_module(name: &Name) -> Error {
    Error::new(format!("insula.ko does not answer in the node '{name}'"))
        .untouched()
        .hint(
            "its kernel needs insula.ko: `modprobe insula` there, with the package insula-dkms, \
             or `insmod`",
        )
}

pub(super) fn busy(name: &Name) -> Error {
    Error::new(format!(
        "another update of the node '{name}' is in progress"
    ))
    .untouched()
    .hint("try again when it is done")
}

pub(super) fn protocol_error(name: &Name) -> Error {
    Error::new(format!(
        "the module in the node '{name}' sent an invalid answer"
    ))
    .untouched()
    .hint("use the same version of insula in both")
}

/// It does not answer in time; `what` follows "to".
pub(super) fn timed_out(name: &Name, what: &str) -> Error {
    Error::new(format!(
        "the node '{name}' takes too long to {what}, and may still do it"
    ))
    .leaving(STAYS)
    .hint("update it again: completed steps are not repeated")
}

/// Its channel failed, as when it has ended.
pub(super) fn channel(name: &Name, error: ChannelError) -> Error {
    match error {
        ChannelError::Disconnected => Error::new(format!(
            "the node '{name}' has ended, or its kernel has unloaded insula.ko"
        ))
        .leaving(STAYS)
        .hint("`insula ps -a` shows its state"),
        error => Error::new(format!("the hotplug channel of the node '{name}' failed"))
            .because(error)
            .leaving("what was added stays with the node"),
    }
}

pub(super) fn unusable_channel(error: impl Into<Source>) -> Error {
    Error::new("the node's hotplug channel cannot be used")
        .because(error)
        .untouched()
}

pub(super) fn module_failed(error: impl Into<Source>) -> Error {
    Error::new("the module failed")
        .because(error)
        .hint("`insula inspect` shows the node's cores and memory")
}
