//! Root disk of the machine on which OCI runtimes are compared: with runc, crun, and the validation tests of the OCI's
//! runtime-tools and of podman; and on which Kubernetes' runtime interface is used, by containerd and the client of its
//! developers or by a kubelet. Go builds those from the sources that its module proxy has.

use std::fs;
use std::path::{Path, PathBuf};

use super::cache::cached;
use super::{Root, RootError, at, debian, disk};
use crate::host::go::go;
use crate::host::project;

/// Where the tests are on the disk: programs in a folder of theirs, beside what they expect in their working directory.
pub const CONFORMANCE: &str = "/usr/lib/conformance";
/// Folder of the tests there.
pub const TESTS: &str = "tests";

/// The client of Kubernetes' runtime interface there.
pub const CRICTL: &str = "/usr/lib/conformance/crictl";

/// Kubernetes' agent of a machine there.
pub const KUBELET: &str = "/usr/lib/conformance/kubelet";

/// Podman's system tests there, scripts for `bats`.
pub const PODMAN_TESTS: &str = "/usr/lib/conformance/podman";

/// The Go module that names the tests and all that they are built of, that of podman's tests, and those of the client and
/// the agent.
const MODULE: &str = "testbed/conformance";
const PODMAN_MODULE: &str = "testbed/podman";
const PODMAN: &str = "github.com/containers/podman/v4";
const CRI_MODULE: &str = "testbed/cri";
const CRICTL_PACKAGE: &str = "sigs.k8s.io/cri-tools/cmd/crictl";
const KUBELET_MODULE: &str = "testbed/kubelet";
const KUBELET_PACKAGE: &str = "k8s.io/kubernetes/cmd/kubelet";
const RUNTIME_TOOLS: &str = "github.com/opencontainers/runtime-tools";
/// The program that the tests run in containers, and the root of those.
const INSIDE: &str = "runtimetest";
const ROOTFS: &str = "rootfs-amd64.tar.gz";

pub(super) fn image(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, RootError> {
    let mut recipe = Root::Conformance.recipe();
    for module in [MODULE, PODMAN_MODULE, CRI_MODULE, KUBELET_MODULE] {
        let sums = project::root().join(module).join("go.sum");
        recipe += &fs::read_to_string(&sums).map_err(at(&sums))?;
    }
    cached("conformance.ext4", &recipe, |work| {
        progress("making the `conformance` root disk: Go builds tests (some minutes)");
        let (files, tree, image) = (
            work.join("files"),
            work.join("root.tar"),
            work.join("image"),
        );
        build(&files)?;
        let hooks = [
            format!("--customize-hook=mkdir -p \"$1{CONFORMANCE}\""),
            format!("--customize-hook=sync-in {} {CONFORMANCE}", files.display()),
        ];
        debian(&Root::Conformance.packages(), &hooks, &tree)?;
        disk(&tree, Root::Conformance.size_bytes(), &image)?;
        Ok(image)
    })
}

fn build_program(module: &str, output: &Path, package: &str) -> Result<(), RootError> {
    let build = go(&project::root().join(module))?.args(["build", "-trimpath", "-ldflags=-s -w"]);
    build.arg("-o").arg(output).arg(package).run()?;
    Ok(())
}

/// Builds the tests, the client and the agent.
fn build(files: &Path) -> Result<(), RootError> {
    let tests = files.join(TESTS);
    fs::create_dir_all(&tests).map_err(at(&tests))?;
    let all = format!("{RUNTIME_TOOLS}/validation/...");
    let inside = format!("{RUNTIME_TOOLS}/cmd/{INSIDE}");
    for (output, package) in [(&tests, all), (&files.join(INSIDE), inside)] {
        build_program(MODULE, output, &package)?;
    }
    build_program(CRI_MODULE, &files.join("crictl"), CRICTL_PACKAGE)?;
    build_program(KUBELET_MODULE, &files.join("kubelet"), KUBELET_PACKAGE)?;
    let (from, to) = (
        sources(MODULE, RUNTIME_TOOLS)?.join(ROOTFS),
        files.join(ROOTFS),
    );
    fs::copy(&from, &to).map_err(at(&from))?;
    copy_podmans(&files.join("podman"))
}

/// Folder of the sources of a module that `module` names.
fn sources(module: &str, wanted: &str) -> Result<PathBuf, RootError> {
    let module = project::root().join(module);
    go(&module)?.args(["mod", "download", wanted]).run()?;
    let list = go(&module)?.args(["list", "-m", "-f", "{{.Dir}}", wanted]);
    Ok(PathBuf::from(list.run()?.trim()))
}

/// Copies podman's tests.
fn copy_podmans(to: &Path) -> Result<(), RootError> {
    let from = sources(PODMAN_MODULE, PODMAN)?.join("test/system");
    fs::create_dir_all(to).map_err(at(to))?;
    for entry in fs::read_dir(&from).map_err(at(&from))? {
        let path = entry.map_err(at(&from))?.path();
        let is_script = path
            .extension()
            .is_some_and(|kind| kind == "bats" || kind == "bash");
        if let Some(name) = path.file_name().filter(|_| is_script) {
            fs::copy(&path, to.join(name)).map_err(at(&path))?;
        }
    }
    Ok(())
}
