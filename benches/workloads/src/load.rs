//! What the load tools print.

/// The results of one round of one server.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub requests: f64,
    pub rate: f64,
    pub errors: usize,
    /// The server's CPU time per request.
    pub cpu_us: f64,
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
pub fn wrk(text: &str) -> Option<Sample> {
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
pub fn h2load(text: &str) -> Option<Sample> {
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

/// Parses the CSV output of redis-benchmark, which made this many requests for each test. It ends with an error if a reply is one.
pub fn redis_benchmark(text: &str, requests_each: usize) -> Option<Sample> {
    let mut seconds = 0.0;
    let mut requests = 0.0;
    for test in ["SET", "GET"] {
        let fields = line(text, &format!("\"{test}\",\""))?;
        let rate: f64 = fields.split('"').next()?.parse().ok()?;
        seconds += requests_each as f64 / rate;
        requests += requests_each as f64;
    }
    Some(Sample {
        requests,
        rate: requests / seconds,
        ..Sample::default()
    })
}

/// Parses the line that our own load prints: amount, amount per second, errors.
pub fn ours(text: &str) -> Option<Sample> {
    let mut fields = text.split_whitespace();
    Some(Sample {
        requests: fields.next()?.parse().ok()?,
        rate: fields.next()?.parse().ok()?,
        errors: fields.next()?.parse().ok()?,
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

    #[test]
    fn redis_benchmark_weighs_both_tests() {
        let text =
            "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"100000.00\",\"0.4\"\n\"GET\",\"300000.00\",\"0.4\"\n";
        let sample = redis_benchmark(text, 300_000).expect("understood");
        assert_eq!((sample.requests, sample.rate), (600_000.0, 150_000.0));
        assert!(redis_benchmark("\"SET\",\"100000.00\"\n", 1).is_none(), "no GET");
    }
}
