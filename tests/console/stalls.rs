//! Stalls: caught while they last, with the task and the stack. The loop is blocked by a gate, not for a time.

use std::sync::mpsc;
use std::time::Duration;

use windlass::console::{self, Console};
use windlass::task::{Builder, yield_now};

use crate::client::{Events, Json, find_loop, get, loop_when};
use crate::support::on_every_kernel_driver;
use crate::{Gate, OpenOnDrop, Program};

fn serve() -> Console {
    let builder = console::Builder::new().stall_limit(Duration::from_millis(100));
    builder.serve("127.0.0.1:0").expect("a console")
}

/// The function that the stack must contain.
#[inline(never)]
fn blocks_the_loop(gate: &Gate) {
    gate.block();
    // So that the call above is not the last one, which has no frame.
    std::hint::black_box(gate);
}

/// Blocks the loop in a task of this name.
fn block(program: &Program, gate: &Gate, name: &'static str) {
    let gate = gate.clone();
    let call = move || drop(Builder::new().name(name).spawn(async move { blocks_the_loop(&gate) }));
    program.handle.call_soon_threadsafe(call).expect("the loop is open");
}

fn is_ongoing(found: &Json) -> bool {
    found["stalls"]
        .items()
        .iter()
        .any(|stall| stall["ongoing"] == Json::Bool(true))
}

#[test]
fn a_stall_is_shown_while_it_lasts_with_task_and_stack() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        let gate = Gate::default();
        let _open = OpenOnDrop(gate.clone());
        program.call(|| drop(Builder::new().name("bystander").spawn(std::future::pending::<()>())));
        loop_when(&console, "/tasks.json", &program.name, |found| {
            found.find_task("bystander").is_some()
        });
        let mut events = Events::open(&console, "/events");
        block(&program, &gate, "a culprit with a name of more than 32 bytes");
        let mut seen = None;
        while seen.is_none() {
            let document = events.next_snapshot();
            seen = find_loop(&document, &program.name)
                .filter(|found| is_ongoing(found))
                .cloned();
        }
        let found = seen.expect("seen");
        assert_eq!(found["state"].text(), "stalled");
        // The last snapshot is still there.
        found.task("bystander");
        let stall = &found["stalls"].items()[0];
        assert_eq!(stall["what"].text(), "a task");
        assert!(stall["duration_s"].number() > 0.1, "{stall:?}");
        assert!(
            stall["task"]["name"]
                .text()
                .starts_with("a culprit with a name of more "),
            "{stall:?}"
        );
        assert!(
            stall["task"]["at"].text().starts_with("tests/console/stalls.rs:"),
            "{stall:?}"
        );
        assert!(get(&console, "/metrics").body.contains("windlass_loop_stalled"));
        if cfg!(target_os = "linux") {
            let found = loop_when(&console, "/tasks.json", &program.name, |found| {
                !found["stalls"].items()[0]["stack"].items().is_empty()
            });
            let stall = &found["stalls"].items()[0];
            assert_eq!(
                stall["ongoing"],
                Json::Bool(true),
                "the stack is captured while the loop is blocked"
            );
            let frames: Vec<&str> = stall["stack"].items().iter().map(Json::text).collect();
            let culprit = frames
                .iter()
                .find(|frame| frame.contains("blocks_the_loop"))
                .unwrap_or_else(|| panic!("{frames:#?}"));
            assert!(culprit.contains("tests/console/stalls.rs:"), "{culprit}");
            assert!(
                !frames.iter().any(|frame| frame.contains("windlass::event_loop")),
                "{frames:#?}"
            );
            assert!(get(&console, "/dump.txt").body.contains("blocks_the_loop"));
        }
        gate.open();
        let ended = loop_when(&console, "/tasks.json", &program.name, |found| {
            !is_ongoing(found) && found["state"].text() != "stalled"
        });
        let stall = &ended["stalls"].items()[0];
        assert_eq!(ended["stalls_total"].number(), 1.0);
        assert_eq!(stall["task"]["name"].text().chars().next(), Some('a'));
        let longest = ended["timeline"]["longest_us"]
            .items()
            .iter()
            .map(Json::number)
            .fold(0.0, f64::max);
        let counted = ended["turn_us"]["counts"].items()[13..]
            .iter()
            .map(Json::number)
            .sum::<f64>();
        assert!(longest > 100_000.0 && counted >= 1.0, "{longest} {counted}");
        console.stop();
    });
}

#[test]
fn a_callback_that_blocks_is_named_by_its_location() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        let gate = Gate::default();
        let _open = OpenOnDrop(gate.clone());
        let inner = gate.clone();
        program.call(move || drop(windlass::call_soon(move || blocks_the_loop(&inner))));
        let found = loop_when(&console, "/tasks.json", &program.name, is_ongoing);
        let stall = &found["stalls"].items()[0];
        assert_eq!(stall["task"], Json::Null);
        assert!(
            stall["what"]
                .text()
                .starts_with("a callback scheduled at tests/console/stalls.rs:"),
            "{stall:?}"
        );
        gate.open();
        loop_when(&console, "/tasks.json", &program.name, |found| !is_ongoing(found));
        console.stop();
    });
}

#[test]
fn two_loops_can_be_stalled_at_the_same_time() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let programs = [Program::start(case), Program::start(case)];
        let gate = Gate::default();
        let _open = OpenOnDrop(gate.clone());
        for program in &programs {
            block(program, &gate, "blocked");
        }
        for program in &programs {
            loop_when(&console, "/tasks.json", &program.name, |found| {
                let stalls = found["stalls"].items();
                stalls
                    .iter()
                    .any(|stall| cfg!(not(target_os = "linux")) || !stall["stack"].items().is_empty())
            });
        }
        gate.open();
        console.stop();
    });
}

#[test]
fn a_turn_of_many_tasks_has_no_culprit() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        program.call(|| {
            for _ in 0..20 {
                windlass::spawn(async {
                    yield_now().await;
                    std::thread::sleep(Duration::from_millis(20));
                });
            }
        });
        let found = loop_when(&console, "/tasks.json", &program.name, |found| {
            found["stalls_total"].number() >= 1.0 && !is_ongoing(found)
        });
        let stall = &found["stalls"].items()[0];
        assert!(stall["duration_s"].number() >= 0.4, "{stall:?}");
        // On a busy machine one of the tasks may have taken most of the time.
        if stall["task"] == Json::Null {
            assert!(stall["what"].text().starts_with("a turn of "), "{stall:?}");
        }
        console.stop();
    });
}

#[test]
fn the_history_of_stalls_is_bounded() {
    on_every_kernel_driver(|case| {
        let builder = console::Builder::new()
            .stall_limit(Duration::from_millis(5))
            .max_stalls(3);
        let console = builder.capture_stacks(false).serve("127.0.0.1:0").expect("a console");
        let program = Program::start(case);
        for _ in 0..6 {
            program.call(|| std::thread::sleep(Duration::from_millis(20)));
        }
        let found = loop_when(&console, "/tasks.json", &program.name, |found| {
            found["stalls_total"].number() >= 6.0
        });
        assert_eq!(found["stalls"].items().len(), 3);
        assert!(
            found["stalls"]
                .items()
                .iter()
                .all(|stall| stall["stack"].items().is_empty())
        );
        console.stop();
    });
}

#[test]
fn a_console_can_stop_and_a_loop_can_close_during_a_stall() {
    on_every_kernel_driver(|case| {
        let program = Program::start(case);
        let gate = Gate::default();
        let _open = OpenOnDrop(gate.clone());
        let console = serve();
        block(&program, &gate, "blocked");
        loop_when(&console, "/tasks.json", &program.name, is_ongoing);
        console.stop();
        // The next console finds the loop in the middle of a turn.
        let console = serve();
        loop_when(&console, "/tasks.json", &program.name, |found| {
            found["state"].text() == "stalled"
        });
        let name = program.name.clone();
        let (sender, closed) = mpsc::channel();
        std::thread::spawn(move || {
            drop(program);
            sender.send(()).expect("the test waits");
        });
        gate.open();
        closed.recv().expect("the loop closes");
        let found = loop_when(&console, "/tasks.json", &name, |found| {
            found["state"].text() == "closed"
        });
        assert!(!is_ongoing(&found));
        console.stop();
    });
}
