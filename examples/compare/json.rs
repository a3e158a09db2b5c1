//! All raw figures as JSON.

use super::kit::json::{list, number, object, string};
use super::kit::load::Round;
use super::options::Plan;
use super::run::{Results, Setting};

pub(crate) fn document(plan: &Plan, setting: &Setting, results: &Results) -> String {
    let document = object(&[
        ("date", string(&setting.date)),
        ("command", string(&setting.command)),
        ("quick", plan.quick.to_string()),
        ("machine", machine(setting)),
        ("echo", echo(results)),
        ("all_cores", all_cores(results)),
        ("system_calls", system_calls(results)),
        ("timers", timers(results)),
        ("memory", memory(results)),
        ("stalls", stalls(results)),
        ("tasks", tasks(results)),
        ("not_measured", list(results.missing.iter().map(|line| string(line)))),
    ]);
    document + "\n"
}

fn machine(setting: &Setting) -> String {
    let (machine, limits) = (&setting.machine, &setting.limits);
    let pinned = match machine.pinned {
        Some((server, load)) => list([server.to_string(), load.to_string()]),
        None => "null".into(),
    };
    let known = |limit: Option<u64>| limit.map_or("null".into(), |limit| limit.to_string());
    object(&[
        ("cores", machine.cores.to_string()),
        ("processor", string(&machine.model)),
        ("kernel", string(&machine.kernel)),
        ("server_and_load_core", pinned),
        ("same_physical_core", machine.are_siblings.to_string()),
        ("drivers", list(setting.drivers.iter().map(|driver| string(driver)))),
        (
            "python",
            setting.python.as_ref().map_or("null".into(), |python| string(python)),
        ),
        ("descriptor_limit", limits.descriptors.to_string()),
        ("fs_nr_open", known(limits.nr_open)),
        ("epoll_max_user_watches", known(limits.epoll_watches)),
    ])
}

/// Every round of every contender under every load.
fn echo(results: &Results) -> String {
    let mut rounds = Vec::new();
    for workload in &results.echo {
        for (kind, score) in &workload.scores {
            for (index, round) in score.rounds.iter().enumerate() {
                rounds.push(object(&[
                    ("contender", string(kind.name())),
                    ("connections", workload.shape.connections.to_string()),
                    ("request_bytes", workload.shape.request_len.to_string()),
                    ("round", (index + 1).to_string()),
                    ("requests", round.requests.to_string()),
                    ("wall_ns", round.wall.as_nanos().to_string()),
                    ("server_cpu_ns", round.cpu.as_nanos().to_string()),
                    ("load_cpu_ns", round.load_cpu.as_nanos().to_string()),
                    ("latency_ns_and_count", latency(round)),
                ]));
            }
        }
    }
    list(rounds)
}

fn all_cores(results: &Results) -> String {
    let mut rounds = Vec::new();
    for pool in &results.pools {
        for (index, round) in pool.score.rounds.iter().enumerate() {
            rounds.push(object(&[
                ("contender", string(pool.kind.name())),
                ("shards", pool.shards.to_string()),
                ("connections", pool.shape.connections.to_string()),
                ("request_bytes", pool.shape.request_len.to_string()),
                ("round", (index + 1).to_string()),
                ("requests", round.requests.to_string()),
                ("wall_ns", round.wall.as_nanos().to_string()),
                ("server_cpu_ns", round.cpu.as_nanos().to_string()),
                ("load_cpu_ns", round.load_cpu.as_nanos().to_string()),
            ]));
        }
    }
    list(rounds)
}

fn latency(round: &Round) -> String {
    list(
        round
            .latency
            .bars()
            .map(|(nanos, count)| format!("[{nanos:.0},{count}]")),
    )
}

fn system_calls(results: &Results) -> String {
    list(results.calls.iter().map(|calls| {
        object(&[
            ("contender", string(calls.kind.name())),
            ("connections", calls.shape.connections.to_string()),
            ("request_bytes", calls.shape.request_len.to_string()),
            ("requests", calls.requests.to_string()),
            ("system_calls", calls.calls.to_string()),
        ])
    }))
}

fn timers(results: &Results) -> String {
    list(results.timers.iter().map(|late| {
        let rounds = late.rounds.iter().map(|round| list(round.iter().map(i64::to_string)));
        object(&[
            ("contender", string(late.kind.name())),
            ("sleep_ns", late.pause.as_nanos().to_string()),
            ("late_ns_by_round", list(rounds)),
        ])
    }))
}

fn memory(results: &Results) -> String {
    list(results.memory.iter().map(|memory| {
        object(&[
            ("contender", string(memory.kind.name())),
            ("connections", memory.connections.to_string()),
            ("bytes_before", memory.bytes_before.to_string()),
            ("bytes_after", memory.bytes_after.to_string()),
        ])
    }))
}

fn stalls(results: &Results) -> String {
    let scene = |nanos: &[f64; 3]| list(nanos.iter().map(|nanos| number(*nanos)));
    list(results.stalls.iter().map(|stall| {
        let [idle, inside, beside] = &stall.nanos;
        object(&[
            ("contender", string(stall.kind.name())),
            ("idle_p50_p99_worst_ns", scene(idle)),
            ("inside_a_task_p50_p99_worst_ns", scene(inside)),
            ("in_a_thread_p50_p99_worst_ns", scene(beside)),
        ])
    }))
}

fn tasks(results: &Results) -> String {
    list(results.tasks.iter().map(|cost| {
        object(&[
            ("what", string(cost.what)),
            ("contender", string(&format!("{:?}", cost.driver).to_lowercase())),
            ("batches_ns", list(cost.nanos.iter().map(|nanos| number(*nanos)))),
        ])
    }))
}
