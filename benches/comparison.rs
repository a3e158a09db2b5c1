//! The comparison as a bench: `cargo bench --bench comparison` runs the program of `cargo run --release --example
//! compare`, with the same options after `--`. `cargo test --benches` runs it without `--bench`: then it says a word and
//! ends, as the other benches do.

#[path = "../examples/compare/main.rs"]
mod compare;

/// One of these is there if cargo benches, if somebody asks what there is, or if the comparison has started itself again as
/// a server or a sleeper.
const REASONS: [&str; 6] = ["--bench", "--help", "-h", "--serve", "--sleep", "--stall"];

fn main() -> std::process::ExitCode {
    if !std::env::args_os()
        .skip(1)
        .any(|arg| REASONS.iter().any(|reason| arg == *reason))
    {
        println!("nothing is measured here: this is for `cargo bench`");
        return std::process::ExitCode::SUCCESS;
    }
    compare::main()
}
