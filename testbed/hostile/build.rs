//! Links the kernel by the linker script of `bare`.

fn main() {
    println!("cargo::rerun-if-changed=../../bare/image.ld");
    // A checkout that has moved must not be linked by its old path.
    println!("cargo::rerun-if-env-changed=CARGO_MANIFEST_DIR");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if target == "none" {
        let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-link-arg-bins=-T{folder}/../../bare/image.ld");
        println!("cargo::rustc-link-arg-bins=--defsym=image_entry=bare_entry");
        println!("cargo::rustc-link-arg-bins=--no-dynamic-linker");
        println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
    }
}
