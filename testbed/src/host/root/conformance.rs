//! Root disk of the machine on which OCI runtimes are compared: with runc, crun, and the validation tests of the OCI's
//! runtime-tools, which Go builds from the sources that its module proxy has.

use std::fs;
use std::path::{Path, PathBuf};

use super::cache::cached;
use super::{Root, RootError, at, debian, disk};
use crate::host::project;
use crate::host::tool::Tool;

/// Where the tests are on the disk: programs in a folder of theirs, beside what they expect in their working directory.
pub const CONFORMANCE: &str = "/usr/lib/conformance";
/// Folder of the tests there.
pub const TESTS: &str = "tests";

/// The Go module that names the tests and all that they are built of.
const MODULE: &str = "testbed/conformance";
const RUNTIME_TOOLS: &str = "github.com/opencontainers/runtime-tools";
/// The program that the tests run in containers, and the root of those.
const INSIDE: &str = "runtimetest";
const ROOTFS: &str = "rootfs-amd64.tar.gz";

pub(super) fn image(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, RootError> {
    let sums = project::root().join(MODULE).join("go.sum");
    let modules = fs::read_to_string(&sums).map_err(at(&sums))?;
    let recipe = format!("{}{modules}", Root::Conformance.recipe());
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

/// Builds the tests.
fn build(files: &Path) -> Result<(), RootError> {
    let tests = files.join(TESTS);
    fs::create_dir_all(&tests).map_err(at(&tests))?;
    let all = format!("{RUNTIME_TOOLS}/validation/...");
    let inside = format!("{RUNTIME_TOOLS}/cmd/{INSIDE}");
    for (output, package) in [(&tests, all), (&files.join(INSIDE), inside)] {
        let build = go().args(["build", "-trimpath", "-ldflags=-s -w", "-o"]);
        build.arg(output).arg(package).run()?;
    }
    let sources = go()
        .args(["list", "-m", "-f", "{{.Dir}}", RUNTIME_TOOLS])
        .run()?;
    let (from, to) = (Path::new(sources.trim()).join(ROOTFS), files.join(ROOTFS));
    fs::copy(&from, &to).map_err(at(&from))?;
    Ok(())
}

/// Go, which keeps what it fetches and builds in the build folder.
fn go() -> Tool {
    let kept = project::build().join("go");
    Tool::new("go")
        .directory(&project::root().join(MODULE))
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-modcacherw -buildvcs=false")
        .env("GOCACHE", kept.join("cache"))
        .env("GOPATH", kept)
}
