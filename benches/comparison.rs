//! The comparison as a bench: `cargo bench --bench comparison` runs the program of `cargo run --release --example
//! compare`, with the same options after `--`.

#[path = "../examples/compare/main.rs"]
mod compare;

fn main() -> std::process::ExitCode {
    compare::main()
}
