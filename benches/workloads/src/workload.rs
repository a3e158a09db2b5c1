//! The workloads: what the server does, and what loads it.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::kit::process::Process;
use crate::load::{self, Sample};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Http1,
    Http2,
    Tls,
    Resp,
    Copy,
}

/// How much one sample measures.
pub struct Effort {
    pub seconds: usize,
    pub requests: usize,
    /// HTTP/1.1 requests per second, independent of the answers.
    pub rate: Option<usize>,
}

/// The connections of an offered rate.
const CLIENTS: usize = 50;

impl Effort {
    /// How long a load may take: a minute, the planned time, and a millisecond for each request.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(60 + self.seconds as u64 + self.requests as u64 / 1000)
    }
}

impl Workload {
    pub const ALL: [Workload; 5] = [
        Workload::Http1,
        Workload::Http2,
        Workload::Tls,
        Workload::Resp,
        Workload::Copy,
    ];

    pub fn named(name: &str) -> Option<Workload> {
        Workload::ALL.into_iter().find(|workload| workload.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Workload::Http1 => "http1",
            Workload::Http2 => "http2",
            Workload::Tls => "tls",
            Workload::Resp => "resp",
            Workload::Copy => "copy",
        }
    }

    pub fn title(self, effort: &Effort) -> String {
        let what = match self {
            Workload::Http1 => "hyper, HTTP/1.1, 13 bytes",
            Workload::Http2 => "hyper, HTTP/2, 13 bytes",
            Workload::Tls => "echo of 1 KiB over TLS 1.3, 32 connections",
            Workload::Resp => "SET and GET in 16 requests at a time (examples/resp_server)",
            Workload::Copy => "copies of a cached file of 16 MiB through the program, 4 at a time",
        };
        let (tool, args) = self.tool(0, effort);
        let tool = Path::new(&tool)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        match self {
            Workload::Tls | Workload::Copy => what.to_owned(),
            _ => {
                let args: Vec<&str> = args
                    .iter()
                    .map(String::as_str)
                    .filter(|arg| !arg.contains("://"))
                    .collect();
                format!(
                    "{what}: {} {}",
                    tool.unwrap_or_default(),
                    args.join(" ").replace("-p 0 ", "")
                )
            }
        }
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Workload::Copy => "MiB",
            _ => "request",
        }
    }

    /// The load's program and its arguments.
    fn tool(self, port: u16, effort: &Effort) -> (String, Vec<String>) {
        let (seconds, requests) = (effort.seconds, effort.requests);
        let (program, args) = match self {
            Workload::Http1 => match effort.rate {
                Some(rate) => {
                    let each = rate.div_ceil(CLIENTS);
                    let limits = format!("--h1 -c {CLIENTS} --rps {each} -D {seconds}");
                    ("h2load", format!("{limits} http://127.0.0.1:{port}/"))
                }
                None => ("wrk", format!("-t 1 -c 256 -d {seconds} http://127.0.0.1:{port}/")),
            },
            Workload::Http2 => ("h2load", format!("-n {requests} -c 64 -m 16 http://127.0.0.1:{port}/")),
            Workload::Resp => (
                "redis-benchmark",
                format!("-p {port} -t set,get -c 50 -P 16 -n {} -r 10000 --csv", 5 * requests),
            ),
            Workload::Tls => ("", format!("load-tls {port} {seconds}")),
            Workload::Copy => ("", format!("load-copy {port} {seconds}")),
        };
        let program = match program {
            "" => std::env::current_exe()
                .expect("our own name")
                .to_string_lossy()
                .into_owned(),
            program => program.to_owned(),
        };
        (program, args.split(' ').map(str::to_owned).collect())
    }

    /// The load's program, if it is not this one and not installed, and the Debian package that has it.
    pub fn missing_tool(self, effort: &Effort) -> Option<(&'static str, &'static str)> {
        let (tool, package) = match self {
            Workload::Http1 if effort.rate.is_none() => ("wrk", "wrk"),
            Workload::Http1 | Workload::Http2 => ("h2load", "nghttp2-client"),
            Workload::Resp => ("redis-benchmark", "redis-tools"),
            Workload::Tls | Workload::Copy => return None,
        };
        let found = Command::new(tool).arg("--version").output();
        found.is_err().then_some((tool, package))
    }

    /// Loads the server on this port, from one core if there is one for the load.
    pub fn run(self, port: u16, effort: &Effort, core: Option<usize>) -> io::Result<Sample> {
        let (program, args) = self.tool(port, effort);
        let mut command = Command::new(&program);
        command.args(args);
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{program}: {error}"));
        let mut process = Process::start(command, core).map_err(failed)?;
        let text = process.all_output(effort.time_limit()).map_err(failed)?;
        let sample = match self {
            Workload::Http1 if effort.rate.is_none() => load::wrk(&text),
            Workload::Http1 | Workload::Http2 => load::h2load(&text),
            Workload::Resp => load::redis_benchmark(&text, 5 * effort.requests),
            Workload::Tls | Workload::Copy => load::ours(&text),
        };
        sample.ok_or_else(|| io::Error::other(format!("unexpected output of {program}:\n{text}")))
    }
}
