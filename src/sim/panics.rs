//! Panics of a run: recorded with their place, and not printed.
//!
//! A run that fails is repeated many times, to shrink it, and every repetition panics. So while a thread is inside
//! [`capture`], the panic hook keeps the panic for [`take`] instead of printing it. Other threads, and the same thread
//! outside of it, keep the hook that was there before.

use std::cell::RefCell;
use std::panic::{self, PanicHookInfo};
use std::sync::Once;

use crate::sim::settings::{Failure, FailureKind};

thread_local! {
    /// The panics of the run on this thread. `None`: this thread captures none.
    static CAPTURED: RefCell<Option<Captured>> = const { RefCell::new(None) };
}

struct Captured {
    /// Oldest first.
    panics: Vec<Failure>,
    /// Whether to keep the stack too, if `RUST_BACKTRACE` asks for it. Finding its symbols takes longer than most runs.
    with_backtrace: bool,
}

/// Panics that are kept: the first is the cause, the others mostly follow from it.
const MAX_KEPT: usize = 16;

/// Runs `run` with panics captured on this thread. [`take`] returns them; what is left at the end is dropped.
pub(crate) fn capture<T>(with_backtrace: bool, run: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !keep(info) {
                earlier(info);
            }
        }));
    });
    /// Restores what was there before, also when `run` panics.
    struct Restore(Option<Captured>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = CAPTURED.try_with(|captured| captured.replace(self.0.take()));
        }
    }
    let new = Captured {
        panics: Vec::new(),
        with_backtrace,
    };
    let _restore = Restore(CAPTURED.with(|captured| captured.replace(Some(new))));
    run()
}

/// The panics on this thread since [`capture`] began or since the last call.
pub(crate) fn take() -> Vec<Failure> {
    CAPTURED
        .with(|captured| {
            captured
                .borrow_mut()
                .as_mut()
                .map(|captured| std::mem::take(&mut captured.panics))
        })
        .unwrap_or_default()
}

/// Whether the panic was kept.
fn keep(info: &PanicHookInfo<'_>) -> bool {
    // A panic while the list is borrowed cannot come from this module; if it does, it is printed.
    let is_kept = CAPTURED.try_with(|captured| {
        let mut captured = captured.try_borrow_mut().ok()?;
        let captured = captured.as_mut()?;
        if captured.panics.len() < MAX_KEPT {
            captured.panics.push(Failure {
                kind: FailureKind::Panic,
                message: message(info.payload()),
                location: info.location().map(ToString::to_string),
                details: if captured.with_backtrace {
                    backtrace()
                } else {
                    Vec::new()
                },
            });
        }
        Some(())
    });
    matches!(is_kept, Ok(Some(())))
}

/// The text of a panic.
pub(crate) fn message(payload: &(dyn std::any::Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a panic whose payload is not a text".to_owned(),
    }
}

/// The stack, if `RUST_BACKTRACE` asks for it.
fn backtrace() -> Vec<String> {
    let backtrace = std::backtrace::Backtrace::capture();
    match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => program_frames(&backtrace.to_string()),
        _ => Vec::new(),
    }
}

/// The frames of a printed stack that are the program's. Those of windlass, the standard library and the test harness,
/// which are most of them and the same in every run, are left out.
fn program_frames(stack: &str) -> Vec<String> {
    let mut frames: Vec<(String, Option<String>)> = Vec::new();
    for line in stack.lines().map(str::trim) {
        match (line.strip_prefix("at "), line.split_once(": ")) {
            (Some(place), _) => {
                if let Some((_, frame_place)) = frames.last_mut() {
                    *frame_place = Some(place.to_owned());
                }
            }
            (None, Some((_number, function))) => frames.push((function.to_owned(), None)),
            (None, None) => {}
        }
    }
    let current = std::env::current_dir().unwrap_or_default();
    let is_the_programs = |place: &str| {
        // Paths below the current directory are printed as relative ones. The C library has such paths too.
        let path = current.join(place.strip_prefix("./").unwrap_or(place));
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        place.contains(".rs:") && !place.starts_with("/rustc/") && !path.starts_with(own)
    };
    frames
        .into_iter()
        .filter_map(|(function, place)| Some((function, place.filter(|place| is_the_programs(place))?)))
        .map(|(function, place)| format!("in {function} at {place}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_shows_the_frames_of_the_program() {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sim/world.rs:877:33");
        let stack = format!(
            "   0: core::panicking::panic_fmt\n             at /rustc/0/library/core/src/panicking.rs:80:14\n   \
             1: kv::tests::survives::{{{{closure}}}}\n             at ./tests/kv.rs:27:5\n   \
             2: turn\n             at {own}\n   \
             3: start_thread\n             at ./nptl/pthread_create.c:442:8\n   \
             4: __unresolved\n"
        );
        assert_eq!(
            program_frames(&stack),
            ["in kv::tests::survives::{{closure}} at ./tests/kv.rs:27:5"]
        );
    }

    #[test]
    fn panics_are_kept_with_their_place_and_only_inside() {
        let line = line!() + 2;
        let kept = capture(false, || {
            let _ = panic::catch_unwind(|| panic!("lost {}", 3));
            let kept = take();
            assert!(take().is_empty());
            kept
        });
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].message, "lost 3");
        let location = kept[0].location.clone().unwrap();
        assert!(location.contains(&format!("panics.rs:{line}:")), "{location}");
        assert!(take().is_empty());
        assert!(CAPTURED.with(|captured| captured.borrow().is_none()));
    }

    #[test]
    fn an_unwinding_run_ends_the_capture() {
        let ended = panic::catch_unwind(|| {
            capture(false, || {
                panic!("out");
            })
        });
        assert!(ended.is_err());
        assert!(CAPTURED.with(|captured| captured.borrow().is_none()));
    }
}
