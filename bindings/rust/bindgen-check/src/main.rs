//! Compares the generated declarations of fastnorm-sys with those that bindgen makes of the same
//! headers: every constant, type, struct field and function, by name, type and value. For who works
//! on the generator; `test.py --bindgen` runs it. libclang must be found, if need be by
//! LIBCLANG_PATH.
//!
//! bindgen-check INCLUDE_DIR FFI_RS

use quote::ToTokens;
use std::collections::BTreeMap;
use std::process::ExitCode;
use syn::{ForeignItem, Item};

/// Declarations by name, as text that does not depend on who wrote them.
type Declarations = BTreeMap<String, String>;

/// Tokens without spaces, paths and the prefix of raw identifiers.
fn plain(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string().replace(' ', "");
    [
        "::core::ffi::",
        "::core::option::",
        "::std::os::raw::",
        "::std::option::",
        "core::ffi::",
        "r#",
        "unsafe",
    ]
    .iter()
    .fold(text, |text, prefix| text.replace(prefix, ""))
    // bindgen appends an underscore to a keyword, and to a length its type.
    .replace("fn_:", "fn:")
    .replace(",)", ")")
    .replace(",>", ">")
    .replace("usize]", "]")
    .replace(",}", "}")
}

fn value(expression: &syn::Expr) -> String {
    let text = plain(expression);
    let number = text
        .strip_prefix("0x")
        .map(|hex| i64::from_str_radix(hex, 16));
    number
        .and_then(Result::ok)
        .map_or(text, |number| number.to_string())
}

fn declarations(source: &str) -> Declarations {
    let file = syn::parse_file(source).expect("Rust");
    let mut found = Declarations::new();
    for item in file.items {
        match item {
            Item::Const(c) if c.ident != "_" => {
                found.insert(
                    c.ident.to_string(),
                    format!("const {} = {}", plain(&c.ty), value(&c.expr)),
                );
            }
            Item::Type(t) => {
                found.insert(t.ident.to_string(), format!("type {}", plain(&t.ty)));
            }
            Item::Struct(s) => {
                let public = s
                    .fields
                    .iter()
                    .filter(|f| matches!(f.vis, syn::Visibility::Public(_)));
                let fields = public.map(|f| format!("{}: {}", plain(&f.ident), plain(&f.ty)));
                let c = s.attrs.iter().any(|a| plain(&a.meta) == "repr(C)");
                let fields = fields.collect::<Vec<_>>().join(", ");
                found.insert(s.ident.to_string(), format!("struct, C {c}: {fields}"));
            }
            Item::ForeignMod(block) => {
                for item in block.items {
                    let ForeignItem::Fn(f) = item else { continue };
                    found.insert(f.sig.ident.to_string(), plain(&f.sig));
                }
            }
            _ => {}
        }
    }
    found.retain(|name, _| name.to_lowercase().starts_with("fastnorm"));
    found
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, include, ours] = &arguments[..] else {
        eprintln!("bindgen-check INCLUDE_DIR FFI_RS");
        return ExitCode::FAILURE;
    };
    let theirs = bindgen::builder()
        .header(format!("{include}/fastnorm/fastnorm.h"))
        .clang_args([format!("-I{include}"), "-std=c99".to_owned()])
        .allowlist_item("(fastnorm|FASTNORM)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .prepend_enum_name(false)
        .fit_macro_constants(false)
        .layout_tests(false)
        .use_core()
        .formatter(bindgen::Formatter::None)
        .generate()
        .expect("bindgen reads the headers")
        .to_string();
    let ours = declarations(&std::fs::read_to_string(ours).expect("the generated file"));
    let theirs = declarations(&theirs);
    let (mut passed, mut failed) = (0, 0);
    let names: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let (mine, other) = (ours.get(name), theirs.get(name));
        if mine == other {
            passed += 1;
            continue;
        }
        failed += 1;
        println!("FAIL {name}\n  generated {mine:?}\n  bindgen   {other:?}");
    }
    println!("{passed} passed, {failed} failed, 0 skipped");
    if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
