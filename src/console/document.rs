//! The documents of the console: `tasks.json`, which is also the data of an event, and `dump.txt`.

use std::collections::HashSet;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::http::Request;
use super::json::Json;
use super::state::{KnownLoop, LoopState, Stall, State, View};
use crate::diagnostics::dump::{Dump, TaskDump};
use crate::diagnostics::probe::{BIN, BOUNDS_US, EntryKind, TaskRecord, ticks};
use crate::task::TaskId;
use crate::{TaskState, Waiting};

/// Operations that are listed.
const MAX_OPS: usize = 500;

/// Which tasks of each loop a document shows, and in which order.
#[derive(Debug)]
pub(super) struct Selection {
    pub(super) limit: usize,
    sort: Sort,
    descending: bool,
    /// In lower case.
    filter: String,
    /// Tasks of this loop only.
    only: Option<u64>,
    /// This task and its ancestors are always shown.
    follow: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Id,
    Busy,
    Polls,
    Longest,
    Since,
    Name,
    State,
}

impl Selection {
    /// The parameters of a request. Unknown values have no effect.
    pub(super) fn of(request: &Request, default_limit: usize, max_limit: usize) -> Selection {
        let number = |name: &str| request.parameter(name).and_then(|text| text.parse::<u64>().ok());
        let sort = request.parameter("sort").unwrap_or("");
        let key = sort.strip_prefix('-').unwrap_or(sort);
        Selection {
            limit: number("limit").map_or(default_limit, |limit| {
                usize::try_from(limit).unwrap_or(max_limit).min(max_limit)
            }),
            sort: match key {
                "busy" => Sort::Busy,
                "polls" => Sort::Polls,
                "longest" => Sort::Longest,
                "since" => Sort::Since,
                "name" => Sort::Name,
                "state" => Sort::State,
                _ => Sort::Id,
            },
            descending: sort.starts_with('-'),
            filter: request.parameter("filter").unwrap_or("").to_lowercase(),
            only: number("loop"),
            follow: number("follow"),
        }
    }

    /// The indices of the tasks that are shown, and how many match.
    fn apply(&self, loop_id: u64, view: &View) -> (Vec<usize>, usize) {
        let tasks = &view.snapshot.tasks;
        if self.only.is_some_and(|only| only != loop_id) {
            return (Vec::new(), 0);
        }
        let mut indices: Vec<usize> = (0..tasks.len()).filter(|&index| self.matches(view, index)).collect();
        let matching = indices.len();
        match self.sort {
            Sort::Id => {}
            Sort::Busy => indices.sort_by_key(|&index| tasks[index].busy),
            Sort::Polls => indices.sort_by_key(|&index| tasks[index].polls),
            Sort::Longest => indices.sort_by_key(|&index| tasks[index].longest),
            Sort::Since => indices.sort_by_key(|&index| tasks[index].since),
            Sort::Name => indices.sort_by_key(|&index| tasks[index].name.as_deref().unwrap_or("")),
            Sort::State => indices.sort_by_key(|&index| state_name(tasks[index].state)),
        }
        if self.descending {
            indices.reverse();
        }
        indices.truncate(self.limit);
        self.add_followed(view, &mut indices);
        (indices, matching)
    }

    fn matches(&self, view: &View, index: usize) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        let task = &view.snapshot.tasks[index];
        let contains = |text: &str| text.to_lowercase().contains(&self.filter);
        task.name.as_deref().is_some_and(contains)
            || contains(state_name(task.state))
            || contains(&task.at.to_string())
            || view.waits[index].iter().any(|waiting| contains(&waiting.to_string()))
    }

    fn add_followed(&self, view: &View, indices: &mut Vec<usize>) {
        let Some(follow) = self.follow else { return };
        let mut shown: HashSet<usize> = indices.iter().copied().collect();
        let mut next = view.by_id.get(&follow).copied();
        while let Some(index) = next {
            if shown.insert(index) {
                indices.push(index);
            }
            // A parent is older than its children, so this ends.
            let task = &view.snapshot.tasks[index];
            next = task
                .parent
                .filter(|&parent| parent < task.id)
                .and_then(|parent| view.by_id.get(&parent).copied());
        }
    }
}

fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Running => "running",
        TaskState::Ready => "ready",
        TaskState::Waiting => "waiting",
    }
}

fn unix_ms(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// The name of the program's file.
pub(super) fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

impl State {
    pub(super) fn json(&self, selection: &Selection) -> String {
        let mut json = Json::default();
        let process = self.process();
        json.object(|json| {
            json.key("v").plain(1);
            json.key("at_ms").plain(unix_ms(SystemTime::now()));
            json.key("program").string(&program());
            json.key("pid").plain(std::process::id());
            json.key("windlass").string(env!("CARGO_PKG_VERSION"));
            let uptime = process.uptime.unwrap_or_else(|| self.started.elapsed());
            json.key("uptime_s").seconds(uptime.as_secs_f64());
            json.key("stall_limit_s").seconds(self.stall_limit.as_secs_f64());
            json.key("process").object(|json| {
                json.key("rss_bytes").optional(process.resident_bytes, Json::plain);
                json.key("descriptors").optional(process.descriptors, Json::plain);
                json.key("descriptor_limit")
                    .optional(process.descriptor_limit, Json::plain);
                json.key("cpu_s")
                    .optional(process.cpu, |json, cpu| json.seconds(cpu.as_secs_f64()));
                json.key("threads").optional(process.threads, Json::plain);
            });
            json.key("loops")
                .array(self.loops(), |json, known| self.loop_json(json, &known, selection));
        });
        json.finish()
    }

    fn loop_json(&self, json: &mut Json, known: &KnownLoop, selection: &Selection) {
        let (page, view) = (&known.page, known.view.borrow().clone());
        let state = self.state_of(known);
        // After the state: a loop that is shown as closed or running has no stall that lasts.
        self.record_ended(known);
        json.object(|json| {
            json.key("id").plain(page.id);
            json.key("name").string(page.title());
            json.key("shard")
                .optional(page.shard.get(), |json, (index, _)| json.plain(index));
            json.key("driver").string(page.driver.name);
            json.key("reason").string(&page.driver.reason);
            json.key("features")
                .array(&page.driver.features, |json, feature| json.string(feature));
            json.key("state").string(state.name());
            json.key("snapshot_age_s")
                .optional(view.as_ref(), |json, view| json.seconds(view.age().as_secs_f64()));
            self.numbers_json(json, known, view.as_deref());
            self.tasks_json(json, known, view.as_deref(), selection);
            self.timeline_json(json, known, state);
            json.key("stalls_total").plain(known.stall_count.get());
            let stalls: Vec<Stall> = known.stalls.borrow().iter().cloned().collect();
            json.key("stalls")
                .array(&stalls, |json, stall| self.stall_json(json, stall));
        });
    }

    fn numbers_json(&self, json: &mut Json, known: &KnownLoop, view: Option<&View>) {
        let page = &known.page;
        let metrics = view.map(|view| view.snapshot.metrics.clone());
        let (counters, times) = metrics
            .map(|metrics| (metrics.counters, metrics.times))
            .unwrap_or_default();
        json.key("counters").object(|json| {
            json.key("turns").plain(counters.turns);
            json.key("polls").plain(page.polls.load(Relaxed));
            json.key("tasks").plain(counters.tasks);
            json.key("ready").plain(counters.ready);
            json.key("timers").plain(counters.timers);
            json.key("in_flight").plain(counters.in_flight);
            json.key("ops").plain(counters.ops);
            json.key("enters").plain(counters.driver.enters);
        });
        json.key("times").object(|json| {
            json.key("idle_s").seconds(times.idle.as_secs_f64());
            json.key("driver_s").seconds(times.driver.as_secs_f64());
            json.key("running_s").seconds(times.running.as_secs_f64());
        });
        for (key, histogram) in [("turn_us", &page.turn_times), ("wake_us", &page.wake_times)] {
            json.key(key).object(|json| {
                json.key("bounds").array(BOUNDS_US, |json, bound| json.plain(bound));
                json.key("counts")
                    .array(histogram.counts(), |json, count| json.plain(count));
            });
        }
        let pools = page.pools.iter().filter_map(|pool| pool.read());
        json.key("pools").array(pools, |json, (name, counters, limit)| {
            json.object(|json| {
                json.key("name").string(&name);
                json.key("threads").plain(counters.threads);
                json.key("idle").plain(counters.idle);
                json.key("queued").plain(counters.queued);
                json.key("limit").plain(limit);
            });
        });
    }

    fn tasks_json(&self, json: &mut Json, known: &KnownLoop, view: Option<&View>, selection: &Selection) {
        let Some(view) = view else {
            for key in ["tasks_total", "tasks_matching", "tasks_shown"] {
                json.key(key).plain(0);
            }
            for key in ["tasks", "ops", "timers"] {
                json.key(key).array([(); 0], |_, ()| {});
            }
            return;
        };
        let snapshot = &view.snapshot;
        let (shown, matching) = selection.apply(known.page.id, view);
        json.key("tasks_total").plain(snapshot.metrics.counters.tasks);
        json.key("tasks_matching").plain(matching);
        json.key("tasks_shown").plain(shown.len());
        json.key("tasks")
            .array(shown, |json, index| self.task_json(json, view, index));
        let ops = snapshot.ops.iter().zip(&view.op_tasks).take(MAX_OPS);
        json.key("ops").array(ops, |json, (&(name, fd, _), &task)| {
            json.object(|json| {
                json.key("name").string(name);
                json.key("descriptor").optional(fd, Json::plain);
                json.key("task").optional(task, Json::plain);
            });
        });
        let age = view.age();
        json.key("timers").array(&view.timers, |json, &(when, task)| {
            json.object(|json| {
                json.key("in_s")
                    .optional((when != crate::time::Instant::NEVER).then_some(when), |json, when| {
                        json.seconds((when - snapshot.now).saturating_sub(age).as_secs_f64());
                    });
                json.key("task").optional(task, Json::plain);
            });
        });
    }

    fn task_json(&self, json: &mut Json, view: &View, index: usize) {
        let task = &view.snapshot.tasks[index];
        json.object(|json| {
            json.key("id").plain(task.id);
            json.key("name").optional(task.name.as_deref(), Json::string);
            json.key("at").string(&task.at.to_string());
            json.key("state").string(state_name(task.state));
            json.key("waits").array(&view.waits[index], |json, waiting: &Waiting| {
                json.string(&waiting.to_string())
            });
            json.key("since_s").optional(task.since, |json, since| {
                json.seconds((since + view.age()).as_secs_f64())
            });
            json.key("polls").plain(task.polls);
            json.key("busy_s").seconds(self.scale.seconds(task.busy));
            json.key("longest_s").seconds(self.scale.seconds(task.longest));
            // A parent that has ended is not listed.
            let parent = task.parent.filter(|parent| view.by_id.contains_key(parent));
            json.key("parent").optional(parent, Json::plain);
        });
    }

    fn timeline_json(&self, json: &mut Json, known: &KnownLoop, state: LoopState) {
        let now = ticks();
        let (mut longest, turns) = known.page.timeline.read(now, self.scale);
        // A turn that lasts fills the bins since it began.
        if state == LoopState::Stalled
            && let Some((_, began)) = known.page.current_turn()
        {
            for (age, bin) in longest.iter_mut().rev().enumerate() {
                let bin_ends = (now / self.scale.bin + 1).saturating_sub(age as u64) * self.scale.bin;
                if bin_ends <= began {
                    break;
                }
                *bin = (*bin).max(bin_ends.min(now) - began);
            }
        }
        let rest = self.scale.duration((now / self.scale.bin + 1) * self.scale.bin - now);
        json.key("timeline").object(|json| {
            json.key("bin_ms").plain(BIN.as_millis());
            json.key("end_ms").plain(unix_ms(SystemTime::now() + rest));
            json.key("longest_us").array(longest, |json, ticks| {
                json.plain((self.scale.seconds(ticks) * 1e6).round() as u64);
            });
            json.key("turns").array(turns, |json, turns| json.plain(turns));
        });
    }

    fn stall_json(&self, json: &mut Json, stall: &Stall) {
        let task = stall.culprit.as_ref().filter(|entry| entry.kind == EntryKind::Task);
        let duration = stall
            .duration
            .unwrap_or_else(|| self.scale.duration(ticks().saturating_sub(stall.began_ticks)));
        json.object(|json| {
            json.key("id").plain(stall.id);
            json.key("began_ms").plain(unix_ms(stall.began));
            json.key("duration_s").seconds(duration.as_secs_f64());
            json.key("ongoing").plain(stall.duration.is_none());
            json.key("task").optional(task, |json, entry| {
                json.object(|json| {
                    json.key("id").plain(entry.task);
                    json.key("name").optional(entry.name.as_deref(), Json::string);
                    json.key("at")
                        .optional(entry.at, |json, at| json.string(&at.to_string()));
                });
            });
            json.key("what").string(&what(stall));
            json.key("stack").array(&stall.stack, |json, frame| json.string(frame));
        });
    }

    /// A dump of every loop as text, with at most this number of tasks of each.
    pub(super) fn dump(&self, limit: usize) -> String {
        let mut text = String::new();
        for known in self.loops() {
            let page = &known.page;
            let _ = writeln!(text, "loop {} '{}' on {}", page.id, page.title(), page.driver);
            let _ = write!(text, "{}", self.state_of(&known).name());
            self.record_ended(&known);
            let view: Option<Rc<View>> = known.view.borrow().clone();
            let _ = match &view {
                Some(view) => writeln!(text, ", as of {:.1?} ago | {}", view.age(), view.snapshot.metrics),
                None => writeln!(text, ", and has not answered"),
            };
            for stall in known.stalls.borrow().iter() {
                self.dump_stall(&mut text, stall);
            }
            if let Some(view) = &view {
                let count = view.snapshot.tasks.len().min(limit);
                let tasks =
                    (0..count).map(|index| task_dump(&view.snapshot.tasks[index], &view.waits[index], view.age()));
                let _ = writeln!(text, "{}", Dump { tasks: tasks.collect() });
                let hidden = view.snapshot.metrics.counters.tasks.saturating_sub(count);
                if hidden > 0 {
                    let _ = writeln!(text, "  and {hidden} more");
                }
            }
            text.push('\n');
        }
        text
    }

    fn dump_stall(&self, text: &mut String, stall: &Stall) {
        let duration = match stall.duration {
            Some(duration) => format!("for {duration:.1?}"),
            None => format!(
                "since {:.1?}",
                self.scale.duration(ticks().saturating_sub(stall.began_ticks))
            ),
        };
        match stall.culprit.as_ref().filter(|entry| entry.kind == EntryKind::Task) {
            None => {
                let _ = write!(text, "stalled {duration} by {}", what(stall));
            }
            Some(entry) => {
                let _ = write!(text, "stalled {duration} by task {}", entry.task);
                if let Some(name) = &entry.name {
                    let _ = write!(text, " '{name}'");
                }
                if let Some(at) = entry.at {
                    let _ = write!(text, ", spawned at {at}");
                }
            }
        }
        text.push('\n');
        for frame in &stall.stack {
            let _ = writeln!(text, "    {frame}");
        }
    }
}

/// What blocks the loop.
fn what(stall: &Stall) -> String {
    match &stall.culprit {
        Some(entry) => match (entry.kind, entry.at) {
            (EntryKind::Task, _) => "a task".to_owned(),
            (EntryKind::Callback, Some(at)) => format!("a callback scheduled at {at}"),
            (EntryKind::Callback, None) => "a callback".to_owned(),
            (EntryKind::Remote, _) => "a callback from another thread".to_owned(),
        },
        None => match stall.entries {
            Some(entries) => format!("a turn of {entries} tasks and callbacks"),
            None => "a turn of many tasks and callbacks".to_owned(),
        },
    }
}

fn task_dump(task: &TaskRecord, waits: &[Waiting], age: Duration) -> TaskDump {
    TaskDump {
        id: TaskId(task.id),
        name: task.name.as_deref().map(str::to_owned),
        spawned_at: task.at,
        state: task.state,
        waits_for: waits.to_vec(),
        since: task.since.map(|since| since + age),
    }
}
