//! The TLS echo server and client examples, against openssl.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::{Running, drivers, example, printed};

/// Whether a program is installed; prints a note if it is not.
fn is_installed(program: &str, ask: &str) -> bool {
    let found = Command::new(program).arg(ask).output().is_ok();
    if !found {
        println!("-- SKIPPED: {program} is not installed");
    }
    found
}

#[test]
fn tls_echo_for_openssl() {
    let wrong = example("tls_echo", "reactor")
        .arg("--nonsense")
        .output()
        .expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("usage: tls_echo"));
    if !is_installed("openssl", "version") {
        return;
    }
    for driver in drivers() {
        let ca = std::env::temp_dir().join(format!("windlass-tls-echo-{}-{driver}.pem", std::process::id()));
        let mut server = Running::start(
            example("tls_echo", driver)
                .args(["--listen", "127.0.0.1:0", "--driver", driver, "--write-ca"])
                .arg(&ca),
        );
        let addr = server.until("listening on").replace("listening on ", "");
        let ask = |options: &[&str]| {
            let mut client = Command::new("openssl");
            client.args(["s_client", "-connect", &addr, "-servername", "localhost", "-CAfile"]);
            client.arg(&ca).args(["-verify_return_error", "-brief"]).args(options);
            let mut client = client
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it is installed");
            let mut stdin = client.stdin.take().expect("it is piped");
            let mut stdout = BufReader::new(client.stdout.take().expect("it is piped"));
            stdin.write_all(b"hello, openssl\n").expect("it listens");
            let mut line = String::new();
            stdout.read_line(&mut line).expect("an echo");
            // Q at the start of a line makes openssl close with close_notify.
            stdin.write_all(b"Q\n").expect("it listens");
            let output = client.wait_with_output().expect("it ends");
            (
                line,
                String::from_utf8_lossy(&output.stderr).into_owned(),
                output.status,
            )
        };
        for version in ["-tls1_2", "-tls1_3"] {
            let (line, stderr, status) = ask(&[version, "-alpn", "echo"]);
            assert_eq!(line, "hello, openssl\n", "{version} on {driver}: {stderr}");
            assert!(stderr.contains("Verification: OK"), "{version} on {driver}: {stderr}");
            assert!(status.success(), "{version} on {driver}: {stderr}");
        }
        // openssl understands a close that the server starts.
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                "-connect",
                &addr,
                "-servername",
                "localhost",
                "-quiet",
                "-CAfile",
            ])
            .arg(&ca)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        let mut stdin = client.stdin.take().expect("it is piped");
        let mut stdout = BufReader::new(client.stdout.take().expect("it is piped"));
        stdin.write_all(b"still here\n").expect("it listens");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("an echo");
        assert_eq!(line, "still here\n", "on {driver}");
        server.send(libc::SIGTERM);
        server.until("all connections closed");
        server.ends_well();
        line.clear();
        assert_eq!(stdout.read_line(&mut line).expect("a clean end"), 0, "on {driver}");
        drop(stdin);
        assert!(client.wait().expect("it ends").success(), "on {driver}");

        // A client that does not read its echo does not delay the end either.
        let mut server = Running::start(example("tls_echo", driver).args([
            "--listen",
            "127.0.0.1:0",
            "--driver",
            driver,
            "--grace",
            "0.3",
        ]));
        let addr = server.until("listening on").replace("listening on ", "");
        let mut client = Command::new("openssl")
            .args(["s_client", "-connect", &addr, "-quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        let mut stdin = client.stdin.take().expect("it is piped");
        let (filled, is_filled) = std::sync::mpsc::channel();
        // More than all the buffers in both directions can hold.
        let filling = std::thread::spawn(move || {
            for _ in 0..64 << 10 {
                if stdin.write_all(&[b'x'; 1024]).is_err() {
                    return;
                }
                let _ = filled.send(());
            }
        });
        while is_filled.recv_timeout(std::time::Duration::from_secs(2)).is_ok() {}
        server.send(libc::SIGINT);
        server.until("grace period over, connections cut: 1");
        server.ends_well();
        let _ = client.kill();
        let _ = client.wait();
        filling.join().expect("no panic");
        let _ = std::fs::remove_file(&ca);
    }
}

#[test]
fn https_get_from_openssl() {
    let wrong = example("https_get", "reactor")
        .arg("ftp://here")
        .output()
        .expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
    if !is_installed("openssl", "version") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("windlass-https-get-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_str().expect("a path of text").to_owned();
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(path("cert.pem"), identity.cert.pem()).expect("a file");
    std::fs::write(path("key.pem"), identity.signing_key.serialize_pem()).expect("a file");
    std::fs::write(path("page.html"), "it is here\n").expect("a file");
    // Finds a free port by binding a listener, which is closed at once.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("a free port").port().to_string();
    let mut server = Command::new("openssl")
        .args([
            "s_server", "-accept", &port, "-cert", "cert.pem", "-key", "key.pem", "-WWW", "-quiet",
        ])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it is installed");
    for _ in 0..500 {
        match std::net::TcpStream::connect(format!("127.0.0.1:{port}")) {
            Ok(_) => break,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    }
    let connect = format!("127.0.0.1:{port}");
    for driver in drivers() {
        let mut get = example("https_get", driver);
        get.args(["--driver", driver, "--connect", &connect, "--ca", &path("cert.pem")]);
        let page = printed(get.arg(format!("https://localhost:{port}/page.html")));
        assert!(page.ends_with("it is here\n"), "{page:?} on {driver}");

        // Another name, and an unknown authority.
        for (url, trusted, expected) in [
            ("https://example.org/page.html", Some("cert.pem"), "is not valid for"),
            ("https://localhost/page.html", None, "not signed by a trusted authority"),
        ] {
            let mut get = example("https_get", driver);
            get.args(["--driver", driver, "--connect", &connect, url]);
            match trusted {
                Some(file) => get.args(["--ca", &path(file)]),
                None => {
                    let mut other = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
                    other
                        .distinguished_name
                        .push(rcgen::DnType::CommonName, "another authority");
                    let key = rcgen::KeyPair::generate().expect("a key");
                    let other = other.self_signed(&key).expect("a certificate");
                    std::fs::write(path("other.pem"), other.pem()).expect("a file");
                    get.args(["--ca", &path("other.pem")])
                }
            };
            let output = get.output().expect("it runs");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && stderr.contains(expected),
                "{stderr} on {driver}"
            );
        }
    }
    let _ = server.kill();
    let _ = server.wait();
    let _ = std::fs::remove_dir_all(&folder);
}
