//! The raw results, for a program.

use crate::kit::json::{list, object, string};
use crate::kit::machine::Machine;
use crate::options::Plan;
use crate::run::Results;

pub(crate) fn document(plan: &Plan, machine: &Machine, results: &Results) -> String {
    let rounds = results.echo.iter().flat_map(|workload| {
        workload.scores.iter().flat_map(move |(kind, score)| {
            score.rounds.iter().map(move |round| {
                object(&[
                    ("contender", string(kind.name())),
                    ("connections", workload.connections.to_string()),
                    ("request_bytes", workload.request_len.to_string()),
                    ("requests", round.requests.to_string()),
                    ("wall_ns", round.wall.as_nanos().to_string()),
                    ("server_cpu_ns", round.cpu.as_nanos().to_string()),
                    ("load_cpu_ns", round.load_cpu.as_nanos().to_string()),
                ])
            })
        })
    });
    let sleeps = results.timers.iter().map(|late| {
        object(&[
            ("contender", string(late.sleeper.name())),
            ("sleep_ns", late.pause.as_nanos().to_string()),
            ("late_ns", list(late.nanos.iter().map(i64::to_string))),
        ])
    });
    let costs = results.tasks.iter().map(|cost| {
        object(&[
            ("what", string(cost.what)),
            ("contender", string(&format!("{:?}", cost.driver).to_lowercase())),
            ("batches_ns", list(cost.nanos.iter().map(|nanos| format!("{nanos:.2}")))),
        ])
    });
    let pinned = match machine.pinned {
        Some((server, load)) => list([server.to_string(), load.to_string()]),
        None => "null".into(),
    };
    let machine = object(&[
        ("cores", machine.cores.to_string()),
        ("processor", string(&machine.model)),
        ("kernel", string(&machine.kernel)),
        ("server_and_load_core", pinned),
        ("same_physical_core", machine.are_siblings.to_string()),
    ]);
    let document = object(&[
        ("machine", machine),
        ("quick", plan.quick.to_string()),
        ("echo", list(rounds)),
        ("timers", list(sleeps)),
        ("tasks", list(costs)),
        ("not_measured", list(results.missing.iter().map(|line| string(line)))),
    ]);
    document + "\n"
}
