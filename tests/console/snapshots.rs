//! Snapshots: loops, tasks, counts of polls, the tree, filters and limits.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::TcpListener;
use windlass::shards::{self, Shard};
use windlass::sync::Queue;
use windlass::task::{self, Builder, JoinSet, yield_now};
use windlass::time::sleep;
use windlass::{EventLoop, spawn_blocking};

use crate::client::{Events, Json, find_loop, get, json, loop_when};
use crate::support::on_every_kernel_driver;
use crate::{Gate, OpenOnDrop, Program, serve, unique};

#[test]
fn a_snapshot_describes_the_loop_and_its_tasks() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        let gate = Gate::default();
        let _open = OpenOnDrop(gate.clone());
        let port = program.call({
            let gate = gate.clone();
            move || {
                Builder::new().name("sleeper").spawn(sleep(Duration::from_secs(3600)));
                let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
                let port = listener.local_addr().expect("an address").port();
                Builder::new().name("acceptor").spawn(async move {
                    let listener = TcpListener::from_std(listener).expect("a listener");
                    listener.accept().await.map(drop)
                });
                Builder::new().name("getter").spawn(async {
                    let queue = Queue::<()>::bounded(1);
                    queue.get().await
                });
                Builder::new()
                    .name("job \"quoted\" <b>\n")
                    .spawn(spawn_blocking(move || gate.block()));
                port
            }
        });
        assert_ne!(port, 0);
        let is_complete = |found: &Json| {
            let waits = |name: &str| {
                found
                    .find_task(name)
                    .is_some_and(|task| !task["waits"].items().is_empty())
            };
            waits("sleeper") && waits("acceptor") && waits("getter") && {
                let pool = &found["pools"].items()[0];
                pool["threads"].number() - pool["idle"].number() == 1.0 && pool["queued"].number() == 0.0
            }
        };
        let found = loop_when(&console, "/tasks.json", &program.name, is_complete);
        assert_eq!(found["driver"].text(), program.driver);
        assert_eq!(found["reason"].text(), "the program asked for it");
        assert_eq!(found["shard"], Json::Null);
        assert!(matches!(found["state"].text(), "running" | "waiting"), "{found:?}");
        assert!(found["snapshot_age_s"].number() >= 0.0);

        let waits = |name: &str| found.task(name)["waits"].items()[0].text().to_owned();
        assert!(waits("sleeper").starts_with("a timer in 3"), "{}", waits("sleeper"));
        assert!(
            waits("acceptor").starts_with("accept on descriptor "),
            "{}",
            waits("acceptor")
        );
        assert!(waits("getter").contains("queue"), "{}", waits("getter"));
        let sleeper = found.task("sleeper");
        assert!(
            sleeper["at"].text().starts_with("tests/console/snapshots.rs:"),
            "{sleeper:?}"
        );
        assert_eq!((sleeper["state"].text(), sleeper["polls"].number()), ("waiting", 1.0));
        assert!(sleeper["longest_s"].number() > 0.0 && sleeper["busy_s"].number() >= sleeper["longest_s"].number());
        found.task("job \"quoted\" <b>\n");

        let total = found["tasks"].items().len();
        assert_eq!(found["tasks_total"].number(), total as f64);
        assert_eq!(found["tasks_shown"].number(), total as f64);
        assert_eq!(found["counters"]["tasks"].number(), total as f64);
        let op = &found["ops"].items()[0];
        assert_eq!(
            (op["name"].text(), &op["task"]),
            ("accept", &found.task("acceptor")["id"])
        );
        let timer = found["timers"]
            .items()
            .iter()
            .find(|timer| timer["task"] == sleeper["id"])
            .expect("a timer");
        assert!((3000.0..=3600.0).contains(&timer["in_s"].number()), "{timer:?}");
        let pool = &found["pools"].items()[0];
        assert_eq!(
            (pool["name"].text(), pool["idle"].number(), pool["queued"].number()),
            ("blocking", 0.0, 0.0)
        );

        for histogram in ["turn_us", "wake_us"] {
            let (bounds, counts) = (found[histogram]["bounds"].items(), found[histogram]["counts"].items());
            assert_eq!((bounds.len(), counts.len()), (15, 16));
            assert!(counts.iter().map(Json::number).sum::<f64>() >= 1.0, "{histogram}");
        }
        let timeline = &found["timeline"];
        assert_eq!(
            (timeline["longest_us"].items().len(), timeline["turns"].items().len()),
            (240, 240)
        );
        assert!(timeline["turns"].items().iter().map(Json::number).sum::<f64>() >= 1.0);
        let document = json(&console, "/tasks.json");
        assert_eq!(
            (document["v"].number(), document["pid"].number()),
            (1.0, f64::from(std::process::id()))
        );
        if cfg!(target_os = "linux") {
            assert!(document["process"]["rss_bytes"].number() > 1e5);
            assert!(document["process"]["descriptors"].number() > 2.0);
        }
        console.stop();
    });
}

#[test]
fn polls_are_counted_per_task() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        program.call(|| {
            for polls in [1u64, 2, 10, 1_000] {
                Builder::new().name(format!("polled {polls}")).spawn(async move {
                    for _ in 1..polls {
                        yield_now().await;
                    }
                    std::future::pending::<()>().await;
                });
            }
            // The first poll is inside of another task's.
            task::spawn_eager(async { std::future::pending::<()>().await });
        });
        let is_done = |found: &Json| {
            found
                .find_task("polled 1000")
                .is_some_and(|task| task["polls"].number() >= 1_000.0)
        };
        let found = loop_when(&console, "/tasks.json", &program.name, is_done);
        for polls in [1u64, 2, 10, 1_000] {
            assert_eq!(found.task(&format!("polled {polls}"))["polls"].number(), polls as f64);
        }
        let eager = found["tasks"]
            .items()
            .iter()
            .find(|task| task["name"] == Json::Null && task["polls"].number() == 1.0);
        assert!(eager.is_some(), "{found:?}");
        assert!(found["counters"]["polls"].number() >= 1_013.0);
        console.stop();
    });
}

#[test]
fn parents_are_the_creators_of_groups_and_the_spawners_of_other_tasks() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        program.call(|| {
            let forever = std::future::pending::<()>;
            Builder::new().name("owner").spawn(async move {
                let set = JoinSet::new();
                let entry = task::group(async |group| {
                    let handle = group.handle();
                    Builder::new().name("member").spawn_in(group, async move {
                        // In the owner's group, but spawned by another task.
                        Builder::new().name("nephew").spawn_in(&handle, forever());
                        Builder::new().name("child").spawn(forever());
                        forever().await;
                    });
                    set.spawn(async move { Builder::new().name("in a set").spawn(forever()).await.is_ok() });
                    forever().await;
                });
                drop(entry.await);
            });
            windlass::call_soon(move || drop(Builder::new().name("of the loop").spawn(forever())));
            let short = windlass::spawn(async move { drop(Builder::new().name("left behind").spawn(forever())) });
            drop(short);
        });
        let names = [
            "owner",
            "member",
            "nephew",
            "child",
            "in a set",
            "of the loop",
            "left behind",
        ];
        let found = loop_when(&console, "/tasks.json", &program.name, |found| {
            // The short task must have ended.
            names.iter().all(|name| found.find_task(name).is_some()) && found["tasks"].items().len() == names.len() + 1
        });
        let id = |name: &str| found.task(name)["id"].clone();
        let parent = |name: &str| found.task(name)["parent"].clone();
        assert_eq!((parent("member"), parent("nephew")), (id("owner"), id("owner")));
        assert_eq!(parent("child"), id("member"));
        assert_eq!((parent("of the loop"), parent("left behind")), (Json::Null, Json::Null));
        let of_set = found["tasks"]
            .items()
            .iter()
            .find(|task| task["id"] == parent("in a set"))
            .expect("the set's task");
        assert_eq!(of_set["parent"], id("owner"));
        console.stop();
    });
}

#[test]
fn events_are_limited_sorted_and_filtered() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        program.call(|| {
            for number in 0..700u64 {
                Builder::new().name(format!("task {number:03}")).spawn(async move {
                    for _ in 0..number % 7 {
                        yield_now().await;
                    }
                    sleep(Duration::from_secs(3600)).await;
                });
            }
            Builder::new()
                .name("parent of one")
                .spawn(async { Builder::new().name("lonely").spawn(std::future::pending::<()>()).await });
        });
        loop_when(&console, "/tasks.json", &program.name, |found| {
            let waits = |task: &Json| task["state"].text() == "waiting";
            found["tasks"].items().len() == 702 && found["tasks"].items().iter().all(waits)
        });
        let shown = |target: &str| {
            let document = Events::open(&console, target).next_snapshot();
            find_loop(&document, &program.name).expect("the loop").clone()
        };
        let names = |found: &Json| -> Vec<String> {
            let names = found["tasks"].items().iter().map(|task| task["name"].text().to_owned());
            names.collect()
        };
        let default = shown("/events");
        assert_eq!(
            (default["tasks"].items().len(), default["tasks_shown"].number()),
            (500, 500.0)
        );
        assert_eq!(default["tasks_total"].number(), 702.0);
        assert_eq!(names(&shown("/events?limit=2&sort=name")), ["lonely", "parent of one"]);
        assert_eq!(names(&shown("/events?limit=2&sort=-name")), ["task 699", "task 698"]);
        let polls = |found: &Json| -> Vec<f64> {
            found["tasks"]
                .items()
                .iter()
                .map(|task| task["polls"].number())
                .collect()
        };
        assert_eq!(
            polls(&shown("/events?limit=3&sort=-polls&filter=task")),
            [7.0, 7.0, 7.0]
        );
        assert_eq!(names(&shown("/events?filter=TASK%20042")), ["task 042"]);
        assert_eq!(
            shown("/events?filter=a+timer+in&limit=1000")["tasks"].items().len(),
            700
        );
        assert_eq!(
            shown("/events?filter=snapshots.rs&limit=1000")["tasks"].items().len(),
            702
        );
        assert_eq!(shown("/events?filter=no+such+task")["tasks"].items().len(), 0);
        for sort in ["id", "busy", "longest", "since", "state", "nonsense"] {
            assert_eq!(
                shown(&format!("/events?limit=10&sort={sort}"))["tasks"].items().len(),
                10,
                "{sort}"
            );
        }
        let id = default["id"].number();
        let lonely = shown("/events?filter=lonely")["tasks"].items()[0]["id"].number();
        let mut followed = names(&shown(&format!("/events?limit=1&filter=task+000&follow={lonely}")));
        followed.sort();
        assert_eq!(followed, ["lonely", "parent of one", "task 000"]);
        assert_eq!(shown(&format!("/events?limit=1&loop={id}"))["tasks"].items().len(), 1);
        assert_eq!(
            shown(&format!("/events?limit=1&loop={}", id + 1.0))["tasks"]
                .items()
                .len(),
            0
        );
        console.stop();
    });
}

#[test]
fn events_follow_the_program_and_do_not_wake_an_idle_one() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        let mut events = Events::open(&console, "/events");
        let mut sees = |name: &str| {
            while find_loop(&events.next_snapshot(), &program.name).is_none_or(|found| found.find_task(name).is_none())
            {
            }
        };
        for name in ["first", "second"] {
            program.call(move || drop(Builder::new().name(name).spawn(std::future::pending::<()>())));
            sees(name);
        }
        // The snapshot of an idle loop grows older: the viewer does not wake the loop for another one.
        loop_when(&console, "/tasks.json", &program.name, |found| {
            found["snapshot_age_s"].number() > 2.0
        });
        drop(events);
        console.stop();
    });
}

#[test]
fn loops_made_before_and_after_the_console_are_shown_until_they_close() {
    on_every_kernel_driver(|case| {
        let before = Program::start(case);
        let console = serve();
        let after = Program::start(case);
        for program in [&before, &after] {
            let found = loop_when(&console, "/tasks.json", &program.name, |found| {
                found["snapshot_age_s"] != Json::Null
            });
            assert_ne!(found["state"].text(), "closed");
        }
        let name = before.name.clone();
        drop(before);
        let closed = loop_when(&console, "/tasks.json", &name, |found| {
            found["state"].text() == "closed"
        });
        assert_eq!(closed["tasks"].items().len(), 0);
        assert!(
            !get(&console, "/metrics").body.contains(&name),
            "a closed loop has no metrics"
        );
        let addr = console.local_addr();
        console.stop();
        assert!(
            std::net::TcpStream::connect(addr).is_err(),
            "a stopped console does not listen"
        );
        // The loop runs without a console, and with the next one.
        assert_eq!(after.call(|| 6 * 7), 42);
        let console = serve();
        loop_when(&console, "/tasks.json", &after.name, |found| {
            found["snapshot_age_s"] != Json::Null
        });
        console.stop();
    });
}

#[test]
fn a_loop_that_does_not_run_is_shown_without_a_snapshot() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let name = unique("idle");
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let event_loop: EventLoop = case.event_loop();
            let found = loop_when(&console, "/tasks.json", &name, |_| true);
            assert_eq!(
                (&found["snapshot_age_s"], found["state"].text()),
                (&Json::Null, "waiting")
            );
            event_loop.run_until_complete(yield_now()).expect("the loop runs");
            console.stop();
        });
        thread.expect("a thread").join().expect("no panic");
    });
}

#[test]
fn shards_are_shown_with_their_names_and_numbers() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let name = unique("pool");
        let pool = shards::Builder::new()
            .count(3)
            .name({
                let name = name.clone();
                move |index| format!("{name}-{index}")
            })
            .each_loop(move |_, _| case.builder());
        let main = move |shard: Shard| {
            let (console, name) = (console.local_addr(), name.clone());
            async move {
                if shard.index() == 0 {
                    let check = move || {
                        let request = crate::client::request("GET", console, "/tasks.json", "");
                        let document =
                            crate::client::parse(&crate::client::send(console, request.as_bytes()).unwrap().body);
                        let shards: Vec<f64> = document["loops"]
                            .items()
                            .iter()
                            .filter(|found| found["name"].text().starts_with(&name))
                            .map(|found| found["shard"].number())
                            .collect();
                        assert_eq!(shards.len(), 3, "{document:?}");
                        for index in 0..3 {
                            assert!(shards.contains(&f64::from(index)), "{shards:?}");
                        }
                    };
                    spawn_blocking(check).await.expect("no panic");
                    shard.stop();
                }
                shard.stopping().await;
                Ok::<(), std::io::Error>(())
            }
        };
        pool.build().expect("a pool").run(main).expect("the pool ends");
    });
}

#[test]
fn a_dump_names_tasks_and_what_they_wait_for() {
    on_every_kernel_driver(|case| {
        let console = serve();
        let program = Program::start(case);
        program.call(|| drop(Builder::new().name("dumped").spawn(sleep(Duration::from_secs(3600)))));
        loop_when(&console, "/tasks.json", &program.name, |found| {
            found.find_task("dumped").is_some()
        });
        let response = get(&console, "/dump.txt");
        assert_eq!(response.header("content-type"), Some("text/plain; charset=utf-8"));
        assert!(
            response.body.contains(&format!("'{}' on ", program.name)),
            "{}",
            response.body
        );
        let line = response
            .body
            .lines()
            .find(|line| line.contains("'dumped'"))
            .expect("the task");
        assert!(
            line.contains(", spawned at tests/console/snapshots.rs:") && line.contains("waits for a timer in "),
            "{line}"
        );
        console.stop();
    });
}

#[test]
fn nothing_is_measured_without_a_console_on_the_virtual_clock() {
    // A loop on a virtual clock is not shown: a message of the console's thread would disturb it.
    let console = serve();
    let name = unique("virtual");
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
        let event_loop = windlass::Builder::new()
            .driver(windlass::DriverChoice::Null)
            .build()
            .expect("a loop");
        let count = Rc::new(Cell::new(0));
        event_loop
            .run_until_complete(async { sleep(Duration::from_secs(3600)).await })
            .expect("the loop runs");
        count.set(1);
        let document = json(&console, "/tasks.json");
        assert!(find_loop(&document, &name).is_none());
        console.stop();
    });
    thread.expect("a thread").join().expect("no panic");
}
