//! The simulators with their settings, and the parts of the comparison.

use crate::kit::text::{nanos, thousands};
use crate::work::Work;

/// A simulator with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Turmoil,
    Madsim,
    Windlass,
    /// Without the event log.
    WindlassNoLog,
    /// Without faults, as the peers.
    WindlassNoFaults,
}

impl Contender {
    pub(crate) const ALL: [Contender; 5] = [
        Contender::Turmoil,
        Contender::Madsim,
        Contender::Windlass,
        Contender::WindlassNoLog,
        Contender::WindlassNoFaults,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Turmoil => "turmoil",
            Contender::Madsim => "madsim",
            Contender::Windlass => "windlass",
            Contender::WindlassNoLog => "windlass-no-log",
            Contender::WindlassNoFaults => "windlass-no-faults",
        }
    }

    pub(crate) fn settings(self) -> &'static str {
        match self {
            Contender::Turmoil => "0.7: latency 1 ms, no faults; ticks of 1 ms, the default",
            Contender::Madsim => "0.2: latency 1 ms, no faults",
            Contender::Windlass => {
                "log and faults: latency 0.9 ms + exponential 0.1 ms, loss 0.1 %, short counts 1 in 64"
            }
            Contender::WindlassNoLog => "the same faults, no log",
            Contender::WindlassNoFaults => "log, latency 1 ms, no faults",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Contender, String> {
        let found = Contender::ALL.into_iter().find(|contender| contender.name() == name);
        found.ok_or_else(|| format!("there is no simulator '{name}'"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Echo,
    Seeds,
    Heartbeats,
    Idle,
}

impl Part {
    pub(crate) const ALL: [Part; 4] = [Part::Echo, Part::Seeds, Part::Heartbeats, Part::Idle];

    pub(crate) fn parse(name: &str) -> Result<Part, String> {
        match name {
            "echo" => Ok(Part::Echo),
            "seeds" => Ok(Part::Seeds),
            "heartbeats" => Ok(Part::Heartbeats),
            "idle" => Ok(Part::Idle),
            _ => Err(format!(
                "unknown part '{name}': choose one of echo, seeds, heartbeats, idle"
            )),
        }
    }

    /// Its tables.
    pub(crate) fn tables(self, rounds: usize, quick: bool) -> Vec<Table> {
        use Contender::{Madsim, Windlass};
        let all = &Contender::ALL[..];
        let table = |title: &'static str, unit, work| Table {
            title,
            unit,
            work,
            rounds,
            contenders: all,
        };
        match self {
            Part::Echo => vec![
                table(
                    "S1: TCP echo, 3 hosts, 1 connection per client",
                    Unit::PerSecond("messages/s"),
                    Work::Echo { connections: 1 },
                ),
                table(
                    "S1: TCP echo, 3 hosts, 32 connections per client",
                    Unit::PerSecond("messages/s"),
                    Work::Echo { connections: 32 },
                ),
            ],
            Part::Seeds => vec![table(
                "S2: whole runs of 3 hosts and 400 messages",
                Unit::PerSecond("seeds/s"),
                Work::Seeds,
            )],
            Part::Heartbeats => {
                let mut tables = vec![table(
                    "S3: 500 hosts, heartbeats to 8 neighbours, 20 virtual seconds",
                    Unit::Time,
                    Work::Heartbeats { seconds: 20 },
                )];
                // turmoil does not get this far.
                if !quick {
                    tables.push(Table {
                        title: "S3: the same, 1 virtual hour (14.4 M heartbeats)",
                        unit: Unit::Time,
                        work: Work::Heartbeats { seconds: 3_600 },
                        rounds: 1,
                        contenders: &[Madsim, Windlass],
                    });
                }
                tables
            }
            Part::Idle => vec![
                table(
                    "Idle: 2,000 echoes within 1 virtual hour",
                    Unit::Time,
                    Work::Idle { seconds: 3_600 },
                ),
                table(
                    "Idle: 2,000 echoes within 1 virtual day",
                    Unit::Time,
                    Work::Idle { seconds: 86_400 },
                ),
            ],
        }
    }
}

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// More is better.
    PerSecond(&'static str),
    /// Seconds.
    Time,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::PerSecond(name) => name,
            Unit::Time => "time",
        }
    }

    pub(crate) fn show(self, figure: f64) -> String {
        match self {
            Unit::PerSecond(_) => thousands(figure),
            Unit::Time => nanos(figure * 1e9),
        }
    }
}

/// One table of the report.
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
    pub(crate) work: Work,
    pub(crate) rounds: usize,
    pub(crate) contenders: &'static [Contender],
}
