//! What the compiler says about common mistakes, pinned with trybuild: each file in `compile_fail/` is a mistake, and the
//! `.stderr` file next to it the expected message. Those in `compile_fail_macros/` are about the attributes of the feature `macros`.
//!
//! The wording changes between Rust versions, so the test runs only with the version that CI uses as stable, [`PINNED`].
//! After a change of the advice or of that version, write the messages again and read them before committing:
//! `TRYBUILD=overwrite cargo test --features macros --test compile_fail`.

#![cfg(target_os = "linux")]

use std::process::Command;

/// The Rust version whose messages are pinned.
const PINNED: &str = "rustc 1.95.";

#[test]
fn the_compiler_gives_the_right_advice() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("run rustc");
    let version = String::from_utf8_lossy(&version.stdout);
    if !version.starts_with(PINNED) {
        println!("skipped: the messages are those of {PINNED}x, and this is {version}");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
    cases.compile_fail("tests/compile_fail_macros/*.rs");
}
