//! Connects to the example as tokio-console does, and checks what it would show.

use std::collections::HashMap;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::Duration;

use console_api::field::{Name, Value};
use console_api::instrument::InstrumentRequest;
use console_api::instrument::instrument_client::InstrumentClient;
use console_api::tasks::{Stats, Task};

/// A test that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(120);

/// The program, which is killed when this is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A task as the console shows it.
struct Shown {
    task: Task,
    stats: Stats,
}

impl Shown {
    fn field(&self, name: &str) -> Option<&Value> {
        let is_wanted = |found: &Option<Name>| matches!(found, Some(Name::StrName(found)) if found == name);
        let mut fields = self.task.fields.iter();
        fields.find(|field| is_wanted(&field.name))?.value.as_ref()
    }

    fn name(&self) -> Option<&str> {
        match self.field("task.name")? {
            Value::StrVal(name) => Some(name),
            other => panic!("{other:?}"),
        }
    }

    /// The source file, and the text of the line that spawned the task.
    fn spawned_by<'a>(&self, source: &'a str) -> (&str, &'a str) {
        let location = self.task.location.as_ref().expect("a location");
        let (file, line) = (location.file.as_deref(), location.line.expect("a line"));
        let text = source.lines().nth(line as usize - 1).unwrap_or_default();
        (file.expect("a file"), text)
    }

    fn polls(&self) -> u64 {
        self.stats.poll_stats.as_ref().expect("they are always sent").polls
    }

    fn has_ended(&self) -> bool {
        self.stats.dropped_at.is_some()
    }

    /// Without a waker, tokio-console warns that the task will never be woken.
    fn wakers(&self) -> i64 {
        self.stats.waker_clones as i64 - self.stats.waker_drops as i64
    }
}

/// Runs the program on a driver, and receives updates until `is_enough`.
async fn watch(driver: &str, is_enough: impl Fn(&[&Shown]) -> bool) -> Vec<Shown> {
    // Free a moment ago.
    let addr = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let addr = addr.expect("a free port");
    let program = Command::new(env!("CARGO_BIN_EXE_tokio-console-example"))
        .env("TOKIO_CONSOLE_BIND", addr.to_string())
        .env("TOKIO_CONSOLE_PUBLISH_INTERVAL", "50ms")
        .env("WINDLASS_DRIVER", driver)
        .spawn();
    let mut program = Program(program.expect("the program starts"));
    let mut client = loop {
        match InstrumentClient::connect(format!("http://{addr}")).await {
            Ok(client) => break client,
            Err(error) => {
                let ended = program.0.try_wait().expect("it is a child");
                assert!(ended.is_none(), "the program has ended: {ended:?}, {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let updates = client.watch_updates(InstrumentRequest {}).await.expect("a stream");
    let mut updates = updates.into_inner();
    let mut shown: HashMap<u64, Shown> = HashMap::new();
    loop {
        let update = updates.message().await.expect("an update").expect("the stream goes on");
        let Some(update) = update.task_update else { continue };
        for task in update.new_tasks {
            let id = task.id.as_ref().expect("an id").id;
            let stats = Stats::default();
            shown.insert(id, Shown { task, stats });
        }
        for (id, stats) in update.stats_update {
            // Sent with or after its task.
            shown.get_mut(&id).expect("its task").stats = stats;
        }
        if is_enough(&shown.values().collect::<Vec<_>>()) {
            return shown.into_values().collect();
        }
    }
}

fn find<'a>(tasks: &[&'a Shown], name: &str) -> Option<&'a Shown> {
    tasks.iter().copied().find(|task| task.name() == Some(name))
}

/// The tasks that do not end, each with a part of the line that spawns it.
const TASKS: [(&str, &str); 6] = [
    ("main", "windlass::run("),
    ("server", "spawn(serve("),
    ("ticker", "spawn(tick("),
    ("busy", "spawn(compute("),
    ("client", "spawn(send("),
    ("connection", "spawn(echo("),
];

fn is_enough(tasks: &[&Shown]) -> bool {
    // The counts of a task are not read at one moment, so a difference of two counts can be wrong in one update.
    let is_right = |task: &Shown| task.polls() >= 1 && task.wakers() >= 1;
    let is_shown = |(name, _): &(&str, &str)| find(tasks, name).is_some_and(is_right);
    let is_active = |name| find(tasks, name).is_some_and(|task| task.polls() >= 5 && task.stats.wakes >= 4);
    let has_ended = |name| find(tasks, name).is_some_and(Shown::has_ended);
    TASKS.iter().all(is_shown)
        && ["ticker", "busy", "client", "connection"].into_iter().all(is_active)
        && find(tasks, "busy").is_some_and(|task| task.stats.self_wakes >= 2)
        && ["tick 1", "tick 2"].into_iter().all(has_ended)
}

fn check(driver: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let watching = async { tokio::time::timeout(HANG, watch(driver, is_enough)).await };
    let tasks = runtime
        .expect("a runtime")
        .block_on(watching)
        .expect("the tasks appear");
    let tasks: Vec<&Shown> = tasks.iter().collect();
    let source = include_str!("../src/main.rs");
    for (name, line) in TASKS {
        let task = find(&tasks, name).expect("checked before");
        let (file, text) = task.spawned_by(source);
        assert_eq!(file, "src/main.rs", "{driver}: {name}");
        assert!(text.contains(line), "{driver}: {name} was spawned by '{text}'");
        assert!(!task.has_ended(), "{driver}: {name}");
        assert!(
            task.polls() <= task.stats.wakes + 1,
            "{driver}: {name}: {:?}",
            task.stats
        );
        assert_eq!(
            task.field("kind"),
            Some(&Value::StrVal("local".into())),
            "{driver}: {name}"
        );
        for number in ["task.id", "size.bytes"] {
            let value = task.field(number);
            assert!(
                matches!(value, Some(&Value::U64Val(value)) if value > 0),
                "{driver}: {name}: {number}"
            );
        }
    }
    let mut ids: Vec<_> = tasks
        .iter()
        .map(|task| format!("{:?}", task.field("task.id")))
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), tasks.len(), "{driver}: two tasks have the same id");
    let ended = find(&tasks, "tick 1").expect("checked before");
    assert_eq!((ended.polls(), ended.wakers()), (1, 0), "{driver}");
}

#[test]
fn tokio_console_shows_the_tasks_on_io_uring() {
    check("proactor");
}

#[test]
fn tokio_console_shows_the_tasks_on_epoll() {
    check("reactor");
}
