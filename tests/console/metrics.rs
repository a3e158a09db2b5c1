//! `/metrics`: the text format, the names, and the environment variable.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use windlass::task::{Builder, yield_now};

use crate::client::{get, loop_when, request, send};
use crate::support::on_every_kernel_driver;
use crate::{Program, serve};

/// The samples of a document, by their name and labels. Fails if the format is wrong.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::new());
    let mut helped = HashSet::new();
    let mut current = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a text");
            assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(helped.contains(name), "{line}");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
            current = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().expect("a name");
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix));
            let family = base
                .filter(|base| types.get(*base).is_some_and(|kind| kind == "histogram"))
                .unwrap_or(name);
            assert_eq!(family, current, "the samples of a metric follow its type");
            let value: f64 = value.parse().expect("a number");
            assert!(value >= 0.0, "{line}");
            assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {series}");
        }
    }
    samples
}

#[test]
fn metrics_have_the_format_the_names_and_the_labels_of_prometheus() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        program.call(|| {
            Builder::new().name("busy").spawn(async {
                for _ in 0..100 {
                    yield_now().await;
                }
                std::future::pending::<()>().await;
            });
        });
        let is_done = |found: &crate::client::Json| {
            found
                .find_task("busy")
                .is_some_and(|task| task["polls"].number() > 100.0)
        };
        loop_when(&console, "/tasks.json", &program.name, is_done);
        let response = get(&console, "/metrics");
        assert_eq!(
            response.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        let samples = parse(&response.body);
        let labels = format!("loop=\"{}\",shard=\"\",driver=\"{}\"", program.name, program.driver);
        let value = |name: &str| {
            let series = format!("{name}{{{labels}}}");
            *samples
                .get(&series)
                .unwrap_or_else(|| panic!("no {series} in {}", response.body))
        };
        assert_eq!(value("windlass_tasks"), 1.0);
        assert!(value("windlass_turns_total") >= 100.0);
        assert!(value("windlass_task_polls_total") >= 101.0);
        assert!(value("windlass_loop_busy_seconds_total") > 0.0);
        assert_eq!(value("windlass_loop_stalled"), 0.0);
        for name in ["windlass_turn_duration_seconds", "windlass_wake_to_poll_seconds"] {
            let buckets: Vec<(f64, f64)> = samples
                .iter()
                .filter(|(series, _)| series.starts_with(&format!("{name}_bucket{{{labels},le=")))
                .map(|(series, &count)| {
                    let bound = series.rsplit_once("le=\"").expect("a bound").1.trim_end_matches("\"}");
                    (
                        if bound == "+Inf" {
                            f64::INFINITY
                        } else {
                            bound.parse().expect("a number")
                        },
                        count,
                    )
                })
                .collect();
            let mut sorted = buckets.clone();
            sorted.sort_by(|left, right| left.0.total_cmp(&right.0));
            assert_eq!((sorted.len(), sorted[0].0, sorted[14].0), (16, 1e-6, 1.0));
            assert!(
                sorted.windows(2).all(|pair| pair[0].1 <= pair[1].1),
                "{name} is not cumulative: {sorted:?}"
            );
            assert_eq!(sorted[15].1, value(&format!("{name}_count")));
            assert!(sorted[15].1 >= 100.0 && value(&format!("{name}_sum")) > 0.0);
        }
        if cfg!(target_os = "linux") {
            for name in [
                "process_resident_memory_bytes",
                "process_open_fds",
                "process_max_fds",
                "process_start_time_seconds",
            ] {
                assert!(samples[name] > 0.0, "{name}");
            }
        }
        check_with_promtool(&response.body);
        console.stop();
    });
}

fn check_with_promtool(text: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        return println!("-- SKIPPED: promtool is not installed");
    };
    promtool
        .stdin
        .take()
        .expect("a pipe")
        .write_all(text.as_bytes())
        .expect("written");
    let output = promtool.wait_with_output().expect("promtool ends");
    assert!(output.status.success(), "{output:?}");
}

/// This test binary runs itself with the variable, since it applies to the first loop of a process.
#[test]
fn the_environment_starts_a_console_and_a_wrong_value_does_not_end_the_program() {
    if std::env::var_os("CONSOLE_TEST_CHILD").is_some() {
        for _ in 0..2 {
            windlass::run(async { yield_now().await }).expect("the program runs");
        }
        // Ends when the test closes the pipe.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("a pipe");
        return;
    }
    let start = |addr: &str, token: &str| {
        let this = std::env::current_exe().expect("this program");
        let mut command = Command::new(this);
        command.args([
            "--exact",
            "metrics::the_environment_starts_a_console_and_a_wrong_value_does_not_end_the_program",
            "--nocapture",
        ]);
        command
            .env("CONSOLE_TEST_CHILD", "1")
            .env("WINDLASS_CONSOLE", addr)
            .env("WINDLASS_CONSOLE_TOKEN", token);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    };
    let mut child = start("127.0.0.1:0", "secret");
    let mut errors = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut errors, &mut line).expect("a line");
    let addr = line
        .trim()
        .strip_prefix("windlass: the console is at http://")
        .and_then(|rest| rest.strip_suffix('/'));
    let addr = addr.unwrap_or_else(|| panic!("{line}")).parse().expect("an address");
    let status = |headers: &str| {
        send(addr, request("GET", addr, "/health", headers).as_bytes())
            .expect("a response")
            .status
    };
    assert_eq!((status(""), status("Authorization: Bearer secret\r\n")), (401, 200));
    drop(child.stdin.take());
    assert!(child.wait().expect("the child ends").success());

    for addr in ["nonsense", "0.0.0.0:0", "127.0.0.1:99999", "256.256.256.256:1"] {
        let mut child = start(addr, "secret");
        drop(child.stdin.take());
        let output = child.wait_with_output().expect("the child ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let count = errors
            .lines()
            .filter(|line| line.starts_with("windlass: no console: WINDLASS_CONSOLE="))
            .count();
        assert_eq!(count, 1, "{errors}");
    }
}

#[test]
fn a_dropped_console_continues() {
    let console = serve();
    let addr = console.local_addr();
    drop(console);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        send(addr, request("GET", addr, "/health", "").as_bytes())
            .expect("a response")
            .status,
        200
    );
}
