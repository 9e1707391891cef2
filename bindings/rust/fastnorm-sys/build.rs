//! Finds libfastnorm with pkg-config and refuses one that these declarations do not fit: an older one,
//! or one of another ABI.

use std::env;
use std::path::Path;

/// The library of the ABI that src/ffi.rs declares.
const SONAME: &str = "libfastnorm.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation is built where there is no library
    }
    let link_static = env::var_os("CARGO_FEATURE_STATIC").is_some();
    // This crate has the version of the headers that it was generated from.
    let version = env!("CARGO_PKG_VERSION");
    let found = pkg_config::Config::new()
        .atleast_version(version)
        .statik(link_static)
        .probe("fastnorm");
    let library = match found {
        Ok(library) => library,
        Err(error) => {
            eprintln!(
                "fastnorm-sys {version} needs libfastnorm {version} or later. pkg-config finds it by \
                 fastnorm.pc, whose folder must be in PKG_CONFIG_PATH unless it is a system path.\n\n{error}"
            );
            std::process::exit(1);
        }
    };
    for folder in &library.link_paths {
        check_folder(folder, link_static);
        println!("cargo:libdir={}", folder.display()); // DEP_FASTNORM_LIBDIR of crates that depend on this
    }
}

/// Ends the build where `folder` holds the library in a form that does not fit.
fn check_folder(folder: &Path, link_static: bool) {
    if link_static {
        if !folder.join("libfastnorm.a").exists() {
            eprintln!(
                "the feature `static` needs libfastnorm.a, which {} does not have: build libfastnorm with \
                 -Ddefault_library=both",
                folder.display()
            );
            std::process::exit(1);
        }
    } else if folder.join("libfastnorm.so").exists() && !folder.join(SONAME).exists() {
        eprintln!(
            "fastnorm-sys is for {SONAME}; the libfastnorm.so in {} is of another ABI",
            folder.display()
        );
        std::process::exit(1);
    }
}
