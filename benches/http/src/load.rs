//! The load tools, and parsing of their output.

/// The results of one round of one server.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub requests: f64,
    pub rate: f64,
    pub errors: usize,
    /// The server's CPU time per request.
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

    /// Loads the server on this port, from one core if `is_pinned`.
    pub fn run(&self, port: u16, is_pinned: bool) -> Sample {
        let mut command = match is_pinned {
            true => crate::on_processor(crate::LOAD, self.name().as_ref()),
            false => std::process::Command::new(self.name()),
        };
        let output = command
            .args(self.args())
            .arg(format!("http://127.0.0.1:{port}/"))
            .output()
            .unwrap_or_else(|error| panic!("{}: {error} (apt-get install wrk nghttp2-client)", self.name()));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = || format!("{}:\n{text}{}", self.name(), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{} of {}", output.status, said());
        let sample = match self {
            Tool::Wrk { .. } => wrk(&text),
            Tool::H2load { .. } => h2load(&text),
        };
        sample.unwrap_or_else(|| panic!("unexpected output: {}", said()))
    }
}

/// The rest of the line that starts with a prefix.
fn line<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim_start().strip_prefix(begin))
}

/// The number before or after a word in a list such as `1 this, 2 that` or `this 1, that 2`.
fn field(list: &str, word: &str) -> Option<f64> {
    list.split(',').find_map(|item| {
        let item = item.trim();
        let number = item.strip_suffix(word).or_else(|| item.strip_prefix(word))?;
        number.trim().parse().ok()
    })
}

/// Parses wrk's output. `None` if the format is unknown.
fn wrk(text: &str) -> Option<Sample> {
    // wrk prints the error lines only if there were errors.
    let socket_errors = match line(text, "Socket errors:") {
        Some(list) => ["connect", "read", "write", "timeout"]
            .iter()
            .try_fold(0.0, |sum, kind| Some(sum + field(list, kind)?))?,
        None => 0.0,
    };
    let bad_answers = match line(text, "Non-2xx or 3xx responses:") {
        Some(count) => count.trim().parse().ok()?,
        None => 0.0,
    };
    let requests = text.lines().find_map(|line| line.split_once(" requests in "))?.0;
    Some(Sample {
        requests: requests.trim().parse().ok()?,
        rate: line(text, "Requests/sec:")?.trim().parse().ok()?,
        errors: (socket_errors + bad_answers) as usize,
        cpu_us: 0.0,
    })
}

/// Parses h2load's output. `None` if the format is unknown.
fn h2load(text: &str) -> Option<Sample> {
    let requests = line(text, "requests:")?;
    let (total, succeeded) = (field(requests, "total")?, field(requests, "succeeded")?);
    let good = field(line(text, "status codes:")?, "2xx")?;
    Some(Sample {
        requests: succeeded,
        rate: field(line(text, "finished in")?, "req/s")?,
        errors: (total - succeeded.min(good)) as usize,
        cpu_us: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRK: &str = "\
Running 3s test @ http://127.0.0.1:8080/
  1 threads and 256 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     3.11ms    1.02ms  40.11ms   93.00%
    Req/Sec    81.02k     3.11k   90.00k    70.00%
  243511 requests in 3.01s, 20.67MB read
";

    const H2LOAD: &str = "\
starting benchmark...
spawning thread #0: 64 total client(s). 100000 total requests
Application protocol: h2c
progress: 100% done

finished in 812.12ms, 123134.80 req/s, 4.36MB/s
requests: 100000 total, 100000 started, 100000 done, 99990 succeeded, 10 failed, 10 errored, 0 timeout
status codes: 99985 2xx, 0 3xx, 5 4xx, 0 5xx
traffic: 3.54MB (3712345) total, 1.02MB (1070000) headers (space savings 89.30%), 1.24MB (1300000) data
";

    #[test]
    fn wrk_without_errors() {
        let text = format!("{WRK}Requests/sec:  80901.10\nTransfer/sec:      6.87MB\n");
        let sample = wrk(&text).expect("understood");
        assert_eq!((sample.requests, sample.rate, sample.errors), (243_511.0, 80_901.1, 0));
    }

    #[test]
    fn wrk_with_errors() {
        let errors =
            "  Socket errors: connect 1, read 20, write 300, timeout 4000\n  Non-2xx or 3xx responses: 50000\n";
        let text = format!("{WRK}{errors}Requests/sec:  80901.10\n");
        assert_eq!(wrk(&text).expect("understood").errors, 54_321);
    }

    #[test]
    fn what_is_not_understood_is_no_success() {
        let errors = "  Socket errors: connect 1, read many, write 300, timeout 4000\n";
        assert!(wrk(&format!("{WRK}{errors}Requests/sec:  80901.10\n")).is_none());
        assert!(wrk(WRK).is_none(), "no rate");
        assert!(wrk("unable to connect to 127.0.0.1:8080 Connection refused\n").is_none());
        assert!(h2load("").is_none());
        assert!(h2load(&H2LOAD.replace("99985 2xx", "some 2xx")).is_none());
    }

    #[test]
    fn h2load_counts_what_was_asked_and_not_answered_well() {
        let sample = h2load(H2LOAD).expect("understood");
        assert_eq!((sample.requests, sample.rate, sample.errors), (99_990.0, 123_134.8, 15));
    }
}
