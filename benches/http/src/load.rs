//! The load, and what its tools say of it.

use std::process::Command;

/// One round of one server.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub requests: f64,
    pub rate: f64,
    pub errors: usize,
    /// Of the server, per request.
    pub cpu_us: f64,
}

pub enum Tool {
    Wrk { seconds: usize },
    H2load { requests: usize },
}

impl Tool {
    pub fn name(&self) -> &'static str {
        match self {
            Tool::Wrk { .. } => "wrk",
            Tool::H2load { .. } => "h2load",
        }
    }

    fn args(&self) -> Vec<String> {
        let args = match self {
            Tool::Wrk { seconds } => format!("-t 1 -c 256 -d {seconds}"),
            Tool::H2load { requests } => format!("-n {requests} -c 64 -m 16"),
        };
        args.split(' ').map(str::to_owned).collect()
    }

    pub fn describe(&self) -> String {
        format!("{} {}", self.name(), self.args().join(" "))
    }

    pub fn run(&self, port: u16) -> Sample {
        let output = Command::new(self.name())
            .args(self.args())
            .arg(format!("http://127.0.0.1:{port}/"))
            .output()
            .unwrap_or_else(|error| panic!("{}: {error} (apt-get install wrk nghttp2-client)", self.name()));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match self {
            Tool::Wrk { .. } => wrk(&text),
            Tool::H2load { .. } => h2load(&text),
        }
    }
}

/// The number in front of a word.
fn before(text: &str, word: &str) -> Option<f64> {
    let head = text.split(word).next().filter(|head| head.len() < text.len())?;
    head.trim_end().rsplit([' ', '\n', ',']).next()?.parse().ok()
}

fn after(text: &str, word: &str) -> Option<f64> {
    let rest = text.split(word).nth(1)?;
    rest.trim_start().split([' ', '\n', ',']).next()?.parse().ok()
}

fn wrk(text: &str) -> Sample {
    let told = ["connect", "read", "write", "timeout", "Non-2xx or 3xx responses:"];
    let errors: f64 = match text.contains("Socket errors") || text.contains("Non-2xx") {
        true => told.iter().filter_map(|kind| after(text, kind)).sum(),
        false => 0.0,
    };
    Sample {
        requests: before(text, "requests in").unwrap_or_else(|| panic!("wrk says:\n{text}")),
        rate: after(text, "Requests/sec:").unwrap_or_default(),
        errors: errors as usize,
        cpu_us: 0.0,
    }
}

fn h2load(text: &str) -> Sample {
    let count = |word| before(text, word).unwrap_or_else(|| panic!("h2load says:\n{text}"));
    let (total, succeeded) = (count(" total,"), count(" succeeded,"));
    let good = count(" 2xx");
    Sample {
        requests: succeeded,
        rate: before(text, "req/s").unwrap_or_default(),
        errors: (total - succeeded.min(good)) as usize,
        cpu_us: 0.0,
    }
}
