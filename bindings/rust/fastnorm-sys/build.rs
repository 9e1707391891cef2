//! Finds libfastnorm, or builds it, and refuses one that these declarations do not fit: an older
//! one, or one of another ABI. README.md has the order.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::exit;

/// The library of the ABI that src/ffi.rs declares.
const SONAME: &str = "libfastnorm.so.1";
/// This crate has the version of the headers that it was generated from.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FASTNORM_DIR");
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation is built where there is no library
    }
    let link_static = env::var_os("CARGO_FEATURE_STATIC").is_some();
    if env::var_os("CARGO_FEATURE_VENDORED").is_some() {
        build_vendored();
    } else if let Some(prefix) = env::var_os("FASTNORM_DIR") {
        use_folder(Path::new(&prefix), link_static);
    } else {
        use_pkg_config(link_static);
    }
}

fn fail(text: &str) -> ! {
    eprintln!("{text}");
    exit(1)
}

fn use_pkg_config(link_static: bool) {
    let found = pkg_config::Config::new()
        .atleast_version(VERSION)
        .statik(link_static)
        .probe("fastnorm");
    let library = match found {
        Ok(library) => library,
        Err(error) => fail(&format!(
            "fastnorm-sys {VERSION} needs libfastnorm {VERSION} or later. pkg-config finds it by \
             fastnorm.pc, whose folder must be in PKG_CONFIG_PATH unless it is a system path. \
             FASTNORM_DIR names an installation; the feature `vendored` needs none.\n\n{error}"
        )),
    };
    for folder in &library.link_paths {
        check_folder(folder, link_static);
        // DEP_FASTNORM_LIBDIR of crates that depend on this.
        println!("cargo:libdir={}", folder.display());
    }
}

/// Links what is installed under `prefix`.
fn use_folder(prefix: &Path, link_static: bool) {
    let header = prefix.join("include/fastnorm/version.h");
    let Ok(text) = fs::read_to_string(&header) else {
        fail(&format!(
            "FASTNORM_DIR is {}, without include/fastnorm/version.h; required: an installation of \
             libfastnorm {VERSION} or later",
            prefix.display()
        ))
    };
    let found = ["MAJOR", "MINOR", "PATCH"].map(|part| header_number(&text, part));
    let required: Vec<u32> = VERSION.split('.').map(|n| n.parse().unwrap_or(0)).collect();
    if found.as_slice() < required.as_slice() {
        fail(&format!(
            "FASTNORM_DIR is {}, with libfastnorm {}.{}.{}; required: {VERSION} or later",
            prefix.display(),
            found[0],
            found[1],
            found[2]
        ));
    }
    let names = if link_static {
        ["libfastnorm.a", "libfastnorm.a"]
    } else {
        ["libfastnorm.so", SONAME]
    };
    let Some(folder) = library_folders(prefix)
        .into_iter()
        .find(|folder| names.iter().any(|name| folder.join(name).exists()))
    else {
        fail(&format!(
            "FASTNORM_DIR is {}, without {} in lib; required: an installation that has it",
            prefix.display(),
            names[0]
        ))
    };
    check_folder(&folder, link_static);
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:libdir={}", folder.display());
    if link_static {
        println!("cargo:rustc-link-lib=static=fastnorm");
        println!("cargo:rustc-link-lib=stdc++");
        println!("cargo:rustc-link-lib=m");
    } else {
        println!("cargo:rustc-link-lib=fastnorm");
    }
}

fn header_number(text: &str, part: &str) -> u32 {
    let name = format!("#define FASTNORM_VERSION_{part} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Debian has lib/x86_64-linux-gnu in place of lib.
fn library_folders(prefix: &Path) -> Vec<PathBuf> {
    let processor = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let debian = format!("lib/{processor}-linux-gnu");
    [debian.as_str(), "lib64", "lib"]
        .map(|name| prefix.join(name))
        .into()
}

/// Ends the build where `folder` holds the library in a form that does not fit.
fn check_folder(folder: &Path, link_static: bool) {
    if link_static {
        if !folder.join("libfastnorm.a").exists() {
            fail(&format!(
                "the feature `static` needs libfastnorm.a, which {} does not have: build \
                 libfastnorm with -Ddefault_library=both",
                folder.display()
            ));
        }
    } else if folder.join("libfastnorm.so").exists() && !folder.join(SONAME).exists() {
        fail(&format!(
            "fastnorm-sys is for {SONAME}; the libfastnorm.so in {} is of another ABI",
            folder.display()
        ));
    }
}

#[cfg(not(feature = "vendored"))]
fn build_vendored() {}

/// Compiles the CPU backend. vendor/units.txt has a line for each object: processor, file, flags.
#[cfg(feature = "vendored")]
fn build_vendored() {
    let vendor = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("vendor");
    println!("cargo:rerun-if-changed={}", vendor.display());
    let Ok(units) = fs::read_to_string(vendor.join("units.txt")) else {
        fail(
            "the feature `vendored` needs vendor/units.txt, which a checkout does not have; \
             required: the published crate, or what packages/rust/crates.py makes",
        )
    };
    let processor = env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let mut objects = Vec::new();
    let mut lines = units
        .lines()
        .filter_map(|line| line.strip_prefix(&processor)?.strip_prefix('\t'))
        .peekable();
    if lines.peek().is_none() {
        fail(&format!(
            "the target's processor is {processor}; required: x86_64 or aarch64"
        ));
    }
    // Units of the same flags are compiled together, as many at a time as there are jobs.
    let mut groups: Vec<(&str, Vec<PathBuf>)> = Vec::new();
    for line in lines {
        let (file, flags) = line.split_once('\t').unwrap_or((line, ""));
        match groups.iter_mut().find(|(known, _)| *known == flags) {
            Some((_, files)) => files.push(vendor.join(file)),
            None => groups.push((flags, vec![vendor.join(file)])),
        }
    }
    for (i, (flags, files)) in groups.iter().enumerate() {
        let folder = out.join(format!("group{i}"));
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++20")
            .opt_level(2)
            .debug(false)
            .warnings(false)
            .include(vendor.join("include"))
            .include(vendor.join("src"))
            .out_dir(folder)
            .files(files);
        // Split at the separator that no flag has.
        for flag in flags.split('\u{1f}').filter(|flag| !flag.is_empty()) {
            build.flag(flag);
        }
        objects.extend(build.compile_intermediates());
    }
    cc::Build::new()
        .cpp(true)
        .objects(objects)
        .compile("fastnorm_vendored");
    println!("cargo:rustc-link-lib=m");
    println!("cargo:include={}", vendor.join("include").display());
}
