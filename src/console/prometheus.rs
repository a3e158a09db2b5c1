//! `/metrics`: Prometheus' text format, with its conventions for names and units.

use std::fmt::{Display, Write};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use super::state::{KnownLoop, LoopState, State, View};
use crate::diagnostics::probe::{BOUNDS_US, Histogram, LoopPage};

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A loop that has not closed.
struct Source {
    known: Rc<KnownLoop>,
    labels: String,
    view: Option<Rc<View>>,
}

impl State {
    pub(super) fn metrics(&self) -> String {
        let mut text = String::new();
        let sources = self.sources();
        let of_page = |value: fn(&LoopPage) -> u64| move |source: &Source| Some(value(&source.known.page));
        let from_view = |value: fn(&View) -> f64| move |source: &Source| source.view.as_deref().map(value);

        metric(&mut text, "windlass_build_info", "gauge", "The version of windlass.");
        sample(
            &mut text,
            "windlass_build_info",
            &format!("version=\"{}\"", env!("CARGO_PKG_VERSION")),
            1,
        );
        let loops = Family {
            text: &mut text,
            sources: &sources,
        };
        loops
            .each(
                "windlass_turns_total",
                "counter",
                "Turns of the loop.",
                from_view(|view| view.snapshot.metrics.counters.turns as f64),
            )
            .each(
                "windlass_task_polls_total",
                "counter",
                "Polls of tasks since the console was started.",
                of_page(|page| page.polls.load(Relaxed)),
            )
            .each(
                "windlass_tasks",
                "gauge",
                "Tasks that have not finished.",
                from_view(|view| view.snapshot.metrics.counters.tasks as f64),
            )
            .each(
                "windlass_ready_entries",
                "gauge",
                "Tasks and callbacks in the ready queue.",
                from_view(|view| view.snapshot.metrics.counters.ready as f64),
            )
            .each(
                "windlass_timers",
                "gauge",
                "Timers that have neither fired nor been cancelled.",
                from_view(|view| view.snapshot.metrics.counters.timers as f64),
            )
            .each(
                "windlass_operations_in_flight",
                "gauge",
                "I/O operations in flight.",
                from_view(|view| view.snapshot.metrics.counters.in_flight as f64),
            )
            .each(
                "windlass_driver_enters_total",
                "counter",
                "Polls of the driver with a system call.",
                from_view(|view| view.snapshot.metrics.counters.driver.enters as f64),
            )
            .each(
                "windlass_loop_busy_seconds_total",
                "counter",
                "Time that the loop was not waiting.",
                from_view(|view| view.snapshot.metrics.times.busy().as_secs_f64()),
            )
            .each(
                "windlass_loop_idle_seconds_total",
                "counter",
                "Time that the loop was waiting for events.",
                from_view(|view| view.snapshot.metrics.times.idle.as_secs_f64()),
            )
            .each(
                "windlass_stalls_total",
                "counter",
                "Turns longer than the stall limit.",
                |source: &Source| Some(source.known.stall_count.get()),
            )
            .each(
                "windlass_loop_stalled",
                "gauge",
                "Whether the loop is stalled.",
                |source: &Source| Some(u8::from(self.state_of(&source.known) == LoopState::Stalled)),
            );
        self.pools(&mut text, &sources);
        self.histogram(
            &mut text,
            &sources,
            "windlass_turn_duration_seconds",
            "Duration of turns that ran something.",
            |page| &page.turn_times,
        );
        self.histogram(
            &mut text,
            &sources,
            "windlass_wake_to_poll_seconds",
            "Time from the wake of a task to its poll.",
            |page| &page.wake_times,
        );
        self.process_metrics(&mut text);
        text
    }

    /// The loops, each with labels of its own.
    fn sources(&self) -> Vec<Source> {
        let loops: Vec<_> = self.loops().into_iter().filter(|known| !known.is_closed()).collect();
        let is_unique = |title: &str| loops.iter().filter(|known| known.page.title() == title).count() == 1;
        let labels = |page: &LoopPage| {
            let title = page.title();
            let name = if is_unique(title) {
                title.to_owned()
            } else {
                format!("{title}-{}", page.id)
            };
            let shard = page.shard.get().map(|(index, _)| index.to_string()).unwrap_or_default();
            format!(
                "loop=\"{}\",shard=\"{shard}\",driver=\"{}\"",
                escape(&name),
                escape(page.driver.name)
            )
        };
        let sources = loops.iter().map(|known| Source {
            labels: labels(&known.page),
            view: known.view.borrow().clone(),
            known: known.clone(),
        });
        sources.collect()
    }

    fn pools(&self, text: &mut String, sources: &[Source]) {
        type Value = fn(&crate::blocking::PoolCounters) -> u64;
        let families: [(&str, &str, &str, Value); 4] = [
            ("windlass_pool_threads", "gauge", "Threads of the pool.", |pool| {
                pool.threads as u64
            }),
            (
                "windlass_pool_idle_threads",
                "gauge",
                "Idle threads of the pool.",
                |pool| pool.idle as u64,
            ),
            (
                "windlass_pool_queued_jobs",
                "gauge",
                "Jobs that wait for a thread.",
                |pool| pool.queued as u64,
            ),
            ("windlass_pool_jobs_total", "counter", "Jobs finished.", |pool| {
                pool.done
            }),
        ];
        for (name, kind, help, value) in families {
            metric(text, name, kind, help);
            for source in sources {
                for (pool, counters, _) in source.known.page.pools.iter().filter_map(|pool| pool.read()) {
                    sample(
                        text,
                        name,
                        &format!("{},pool=\"{pool}\"", source.labels),
                        value(&counters),
                    );
                }
            }
        }
    }

    fn histogram(
        &self,
        text: &mut String,
        sources: &[Source],
        name: &str,
        help: &str,
        of: fn(&LoopPage) -> &Histogram,
    ) {
        metric(text, name, "histogram", help);
        for Source { known, labels, .. } in sources {
            let histogram = of(&known.page);
            let mut total = 0;
            let counts = histogram.counts();
            for (bound, count) in BOUNDS_US.iter().zip(counts) {
                total += count;
                let labels = format!("{labels},le=\"{}\"", *bound as f64 / 1e6);
                sample(text, &format!("{name}_bucket"), &labels, total);
            }
            total += counts[BOUNDS_US.len()];
            sample(text, &format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), total);
            sample(
                text,
                &format!("{name}_sum"),
                labels,
                self.scale.seconds(histogram.sum()),
            );
            sample(text, &format!("{name}_count"), labels, total);
        }
    }

    fn process_metrics(&self, text: &mut String) {
        let process = self.process();
        let started = process.uptime.and_then(|uptime| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
            Some(now.saturating_sub(uptime).as_secs_f64())
        });
        let number = |value: Option<u64>| value.map(|value| value as f64);
        for (name, kind, help, value) in [
            (
                "process_cpu_seconds_total",
                "counter",
                "CPU time, user and system.",
                process.cpu.map(|cpu| cpu.as_secs_f64()),
            ),
            (
                "process_open_fds",
                "gauge",
                "Open file descriptors.",
                number(process.descriptors),
            ),
            (
                "process_max_fds",
                "gauge",
                "The limit of open file descriptors.",
                number(process.descriptor_limit),
            ),
            (
                "process_virtual_memory_bytes",
                "gauge",
                "Virtual memory.",
                number(process.virtual_bytes),
            ),
            (
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory.",
                number(process.resident_bytes),
            ),
            (
                "process_threads",
                "gauge",
                "Threads of the process.",
                number(process.threads),
            ),
            (
                "process_start_time_seconds",
                "gauge",
                "Start of the process, in seconds since 1970.",
                started,
            ),
        ] {
            if let Some(value) = value {
                metric(text, name, kind, help);
                sample(text, name, "", value);
            }
        }
    }
}

/// Metrics with one sample per loop.
struct Family<'a> {
    text: &'a mut String,
    sources: &'a [Source],
}

impl Family<'_> {
    /// A loop that has not answered yet has no sample.
    fn each<T: Display>(self, name: &str, kind: &str, help: &str, value: impl Fn(&Source) -> Option<T>) -> Self {
        metric(self.text, name, kind, help);
        for source in self.sources {
            if let Some(value) = value(source) {
                sample(self.text, name, &source.labels, value);
            }
        }
        self
    }
}

fn metric(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(text: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = match labels {
        "" => writeln!(text, "{name} {value}"),
        _ => writeln!(text, "{name}{{{labels}}} {value}"),
    };
}

/// Escapes the value of a label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
