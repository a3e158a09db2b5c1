//! The RESP server: what it answers, to its own clients and to those of Redis.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::{Running, drivers, example};

fn start(driver: &str, args: &[&str]) -> (Running, String) {
    let mut server = Running::start(example("resp_server", driver).arg("127.0.0.1:0").args(args));
    let line = server.until("listening on ");
    let addr = line.rsplit(' ').next().expect("an address").to_owned();
    (server, addr)
}

/// One loop, and a pool: the same replies.
const WAYS: [&[&str]; 2] = [&[], &["--shards", "3"]];

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(addr: &str) -> Client {
        let stream = TcpStream::connect(addr).expect("it listens");
        // Turns a hang into a failure.
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a timeout");
        Client(BufReader::new(stream))
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).expect("it reads");
    }

    /// One reply, on one line: elements of an array in brackets.
    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a reply");
        let line = line.trim_end();
        match line.split_at_checked(1) {
            Some(("$", "-1")) => "nil".to_owned(),
            Some(("$", len)) => {
                let mut bytes = vec![0; len.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("a string");
                String::from_utf8_lossy(&bytes).trim_end().to_owned()
            }
            Some(("*", len)) => {
                let count = len.parse::<usize>().expect("a length");
                format!("[{}]", (0..count).map(|_| self.reply()).collect::<Vec<_>>().join(" "))
            }
            _ => line.to_owned(),
        }
    }

    /// Sends a command as an array of strings, and returns the reply.
    fn ask(&mut self, words: &str) -> String {
        self.send(request(words));
        self.reply()
    }

    /// Asserts that the server closes the connection, without further replies.
    fn expect_end(mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b""),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

fn request(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let strings = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), strings.collect::<String>())
}

#[test]
fn commands() {
    for (driver, way) in drivers().flat_map(|driver| WAYS.map(|way| (driver, way))) {
        let (_server, addr) = start(driver, way);
        let mut client = Client::connect(&addr);
        for (command, reply) in [
            ("PING", "+PONG"),
            ("PING hello", "hello"),
            ("ECHO hello", "hello"),
            ("GET a", "nil"),
            ("SET a 1", "+OK"),
            ("get a", "1"),
            ("INCR a", ":2"),
            ("INCR new", ":1"),
            ("TTL a", ":-1"),
            ("TTL none", ":-2"),
            ("EXPIRE a 100", ":1"),
            ("SET a 5", "+OK"),
            ("TTL a", ":-1"),
            ("EXPIRE none 100", ":0"),
            ("EXPIRE a 0", ":1"),
            ("GET a", "nil"),
            ("DEL a", ":0"),
            ("MSET x 1 y 2", "+OK"),
            ("MGET x none y", "[1 nil 2]"),
            ("DEL x none y", ":2"),
            ("MGET x y", "[nil nil]"),
            ("SET word abc", "+OK"),
            ("INCR word", "-ERR value is not an integer or out of range"),
            ("SET big 9223372036854775807", "+OK"),
            ("INCR big", "-ERR increment or decrement would overflow"),
            ("SET a 1 EX 0", "-ERR invalid expire time in 'set' command"),
            ("SET a 1 EX", "-ERR syntax error"),
            ("SET a 1 IN 5", "-ERR syntax error"),
            ("SET a 1 EX x", "-ERR value is not an integer or out of range"),
            ("MSET x", "-ERR wrong number of arguments for 'mset' command"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("FLUSHALL", "+OK"),
            ("DBSIZE", ":0"),
            ("MSET a 1 b 2 c 3 d 4 e 5 f 6 g 7 h 8", "+OK"),
            ("DBSIZE", ":8"),
            ("MGET h g f e d c b a z", "[8 7 6 5 4 3 2 1 nil]"),
            ("MSET a 1 b 2 a 3", "+OK"),
            ("MGET a a", "[3 3]"),
            ("DEL a b b c", ":3"),
            ("DBSIZE", ":5"),
            ("FLUSHALL", "+OK"),
            ("MGET d e f", "[nil nil nil]"),
            ("DBSIZE now", "-ERR wrong number of arguments for 'dbsize' command"),
            ("SING", "-ERR unknown command 'sing'"),
        ] {
            assert_eq!(client.ask(command), reply, "{command} on {driver}");
        }
        // The time that is left, after hours on a slow machine at most.
        for (command, reply) in [
            ("SET a 5 EX 100000", "+OK"),
            ("EXPIRE a 100000", ":1"),
            ("INCR a", ":6"),
            ("SET a 5 px 100000000", "+OK"),
        ] {
            assert_eq!(client.ask(command), reply, "{command} on {driver}");
            let left = client.ask("TTL a");
            let seconds = left.strip_prefix(':').and_then(|left| left.parse().ok());
            assert!(
                seconds.is_some_and(|left| (90_000..=100_000).contains(&left)),
                "{command}: {left} on {driver}"
            );
        }
        // Expires by itself: waits for the state, however slow the machine is.
        assert_eq!(client.ask("SET short 1 PX 20"), "+OK");
        while client.ask("GET short") != "nil" {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn pipelines_and_partial_requests() {
    for (driver, way) in drivers().flat_map(|driver| WAYS.map(|way| (driver, way))) {
        let (_server, addr) = start(driver, way);
        let mut client = Client::connect(&addr);
        // 2,000 requests before the first reply is read: more than one buffer, and more output than is queued.
        client.send(request(&format!("SET text {}", "x".repeat(500))));
        client.send(request("GET text").repeat(2_000));
        assert_eq!(client.reply(), "+OK");
        for _ in 0..2_000 {
            assert_eq!(client.reply().len(), 500, "on {driver}");
        }
        // Replies come in the order of the requests, and each sees the effects of those before it.
        let keys = (0..50).map(|key| format!("key{key}"));
        let rounds = keys.map(|key| {
            [
                "DEL K other",
                "INCR K",
                "MSET K 7 other 1",
                "DBSIZE",
                "INCR K",
                "MGET other K",
            ]
            .map(|command| request(&command.replace('K', &key)))
            .concat()
        });
        client.send(request("FLUSHALL") + &rounds.collect::<String>());
        assert_eq!(client.reply(), "+OK");
        for key in 0..50 {
            let replies: Vec<String> = (0..6).map(|_| client.reply()).collect();
            let expected = [
                if key == 0 { ":0" } else { ":1" },
                ":1",
                "+OK",
                &format!(":{}", key + 2),
                ":8",
                "[1 8]",
            ];
            assert_eq!(replies, expected, "on {driver} {way:?}");
        }
        // A request and a half: the first is answered without the rest.
        let next = request("ECHO second");
        client.send(request("ECHO first") + &next[..9]);
        assert_eq!(client.reply(), "first", "on {driver}");
        client.send(&next[9..]);
        assert_eq!(client.reply(), "second", "on {driver}");
        // Words on a line, empty lines, and binary values.
        client.send("\r\nSET key value\r\n\nGET   key\r\n");
        assert_eq!((client.reply(), client.reply()), ("+OK".to_owned(), "value".to_owned()));
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$4\r\n\r\n\0\xff\r\n");
        assert_eq!(client.reply(), "+OK");
        client.send("GET b\r\n");
        let mut reply = [0; 10];
        client.0.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"$4\r\n\r\n\0\xff\r\n", "on {driver}");
        // One byte at a time.
        for byte in request("PING").bytes() {
            client.send([byte]);
        }
        assert_eq!(client.reply(), "+PONG", "on {driver}");
        client.0.get_ref().shutdown(Shutdown::Write).expect("half a close");
        client.expect_end();
    }
}

/// A client that breaks the protocol gets an error and is disconnected; the others are not affected.
#[test]
fn protocol_errors() {
    for (driver, way) in drivers().flat_map(|driver| WAYS.map(|way| (driver, way))) {
        let (_server, addr) = start(driver, way);
        let mut bystander = Client::connect(&addr);
        for wrong in [
            "*x\r\n".to_owned(),
            "*1000000000\r\n".to_owned(),
            "*1\r\n+PING\r\n".to_owned(),
            "*1\r\n$-5\r\n".to_owned(),
            "*1\r\n$2000000000\r\n".to_owned(),
            "*2\r\n$4\r\nECHO\r\n$1048570\r\n".to_owned(),
            "x".repeat(70_000),
        ] {
            let mut client = Client::connect(&addr);
            // Before the error, the server answers what was complete.
            client.send("PING\r\n");
            client.send(&wrong);
            assert_eq!(client.reply(), "+PONG", "on {driver}");
            let reply = client.reply();
            assert!(reply.starts_with("-ERR Protocol error: "), "{reply} on {driver}");
            client.expect_end();
            assert_eq!(bystander.ask("PING"), "+PONG", "on {driver}");
        }
    }
}

/// Each shard has its own listener and keys. All stop at a signal, with clients connected.
#[test]
fn shards_stop_together() {
    for driver in drivers() {
        let (mut server, addr) = start(driver, &["--shards", "3"]);
        let mut clients: Vec<Client> = (0..30).map(|_| Client::connect(&addr)).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.ask(&format!("SET key{index} {index}")), "+OK", "on {driver}");
        }
        for (index, client) in clients.iter_mut().rev().enumerate() {
            assert_eq!(client.ask(&format!("GET key{index}")), index.to_string(), "on {driver}");
        }
        server.send(libc::SIGTERM);
        for _ in 0..3 {
            server.until("stopped accepting; ");
        }
        // Open connections are served until they end, also those whose shard has drained its own.
        let last = clients.pop().expect("one of them");
        drop(clients);
        let mut last = last;
        assert_eq!(last.ask("DBSIZE"), ":30", "on {driver}");
        assert_eq!(last.ask("GET key17"), "17", "on {driver}");
        drop(last);
        for _ in 0..3 {
            server.until("all finished");
        }
        server.ends_well();
        assert!(
            TcpStream::connect(&addr).is_err(),
            "on {driver}: a socket is still open"
        );
    }
}

#[test]
fn the_clients_of_redis() {
    if Command::new("redis-cli").arg("--version").output().is_err() {
        return println!("-- SKIPPED: redis-cli and redis-benchmark are not installed");
    }
    for (driver, way) in drivers().flat_map(|driver| WAYS.map(|way| (driver, way))) {
        let (_server, addr) = start(driver, way);
        let port = addr.rsplit(':').next().expect("a port");
        let cli = |args: &[&str]| {
            let output = Command::new("redis-cli")
                .args(["-p", port])
                .args(args)
                .output()
                .expect("it runs");
            String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
        };
        assert_eq!(
            cli(&["set", "greeting", "hello world", "EX", "100"]),
            "OK",
            "on {driver}"
        );
        assert_eq!(cli(&["get", "greeting"]), "hello world", "on {driver}");
        assert_eq!(cli(&["mget", "greeting", "none"]), "hello world", "on {driver}");
        assert_eq!(cli(&["incr", "counter"]), "1", "on {driver}");
        let benchmark = |args: &[&str]| {
            let mut command = Command::new("redis-benchmark");
            let output = command
                .args(["-p", port, "-q", "-n", "2000", "-r", "1000"])
                .args(args)
                .output();
            let output = output.expect("it is installed with redis-cli");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                output.status.success() && !text.contains("Error"),
                "on {driver}: {text}"
            );
            text.matches("requests per second").count()
        };
        assert_eq!(
            benchmark(&["-t", "ping_inline,ping_mbulk,set,get,incr,mset"]),
            6,
            "on {driver}"
        );
        assert_eq!(
            benchmark(&["-t", "set,get", "-P", "32", "-c", "100", "-d", "1000"]),
            2,
            "on {driver}"
        );
    }
}
