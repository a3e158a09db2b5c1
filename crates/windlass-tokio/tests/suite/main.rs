//! The tests, on io_uring and on epoll or kqueue.

mod beside;
#[cfg(unix)]
mod guest;
#[cfg(unix)]
mod libraries;
#[cfg(unix)]
mod postgres;
mod support;

/// The programs of the README are built by its tests.
#[test]
fn the_guide_shows_the_programs_of_the_readme() {
    let (readme, guide) = (
        include_str!("../../README.md"),
        include_str!("../../../../docs/guide/tokio-runtime.md"),
    );
    let programs: Vec<_> = readme
        .split("```rust,no_run\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .collect();
    assert_eq!(programs.len(), 2);
    for program in programs {
        assert!(
            guide.contains(&format!("```rs\n{program}```\n")),
            "docs/guide/tokio-runtime.md does not contain\n{program}"
        );
    }
}
