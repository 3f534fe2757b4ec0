//! Real kernels, if the testbed has fetched any.

mod support;

use insula_boot::{Chunk, lay_out};
use std::path::{Path, PathBuf};
use support::{GIB, LOW, MIB, node};

fn kernels() -> Vec<PathBuf> {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/kernels");
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let boots = entries(build).map(|kernel| kernel.path().join("boot"));
    let files = boots.flat_map(entries).map(|file| file.path());
    let named = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    };
    files.filter(named).collect()
}

#[test]
fn stock_kernels_fit_in_128_mib() {
    let kernels = kernels();
    if kernels.is_empty() {
        println!("skipped: no kernels in build/kernels");
    }
    let chunks = [
        LOW,
        Chunk {
            start: 4 * GIB,
            size: 128 * MIB,
        },
    ];
    for path in kernels {
        let file = std::fs::read(&path).expect("readable");
        let kernel = kimage::inspect(&file).expect("a kernel");
        let layout = lay_out(&node(&kernel, &chunks)).expect("fits");
        assert_eq!(layout.kernel, 4 * GIB, "{}", path.display());
    }
}
