//! The comparison as a bench: `cargo bench --bench comparison` is the same program as `cargo run --release --example
//! compare`, with the same options after `--`. Without `--bench`, as run by `cargo test --benches`,
//! it prints a line and exits, like the other benches.

#[path = "../examples/compare/main.rs"]
mod compare;

/// The arguments with which the program runs: under `cargo bench`, for help, or when it has started itself as a child
/// process.
const REASONS: [&str; 6] = ["--bench", "--help", "-h", "--serve", "--sleep", "--stall"];

fn main() -> std::process::ExitCode {
    if !std::env::args_os()
        .skip(1)
        .any(|arg| REASONS.iter().any(|reason| arg == *reason))
    {
        println!("nothing to do: run this with `cargo bench`");
        return std::process::ExitCode::SUCCESS;
    }
    compare::main()
}
