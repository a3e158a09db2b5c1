//! The same lookups against unbound, if it is installed.

use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use windlass::task::JoinSet;

use crate::{on_every_kernel_driver, resolver, v4};

/// unbound as a process of this test, with zones of its own and no forwarding.
struct Unbound {
    process: Child,
    directory: PathBuf,
    addr: SocketAddr,
}

impl Unbound {
    /// `None` if it is not installed.
    fn start() -> Option<Unbound> {
        let is_installed = Command::new("unbound")
            .arg("-V")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if is_installed.is_err() {
            return None;
        }
        // Not yet taken by another process, most likely.
        let addr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let directory = std::env::temp_dir().join(format!("windlass-unbound-{}", addr.port()));
        fs::create_dir_all(&directory).unwrap();
        let mut config = format!(
            "server:\n interface: 127.0.0.1@{}\n chroot: \"\"\n username: \"\"\n directory: \"{dir}\"\n pidfile: \"\"\n \
             use-syslog: no\n logfile: \"\"\n do-daemonize: no\n do-not-query-localhost: yes\n module-config: \"iterator\"\n \
             outgoing-range: 64\n num-queries-per-thread: 4096\n local-zone: \"test.\" static\n",
            addr.port(),
            dir = directory.display(),
        );
        for index in 0..1_000 {
            config += &format!(
                " local-data: \"n{index}.test. 60 IN A 10.1.{}.{}\"\n",
                index / 256,
                index % 256
            );
        }
        for index in 0..200 {
            config += &format!(" local-data: \"big.test. 60 IN A 10.2.0.{index}\"\n");
        }
        config += "remote-control:\n control-enable: no\n";
        let file = directory.join("unbound.conf");
        fs::write(&file, config).unwrap();
        let process = Command::new("unbound")
            .arg("-d")
            .arg("-c")
            .arg(&file)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let unbound = Unbound {
            process,
            directory,
            addr,
        };
        unbound.wait();
        Some(unbound)
    }

    /// Until it accepts TCP connections, which it does last.
    fn wait(&self) {
        for _ in 0..1_000 {
            if std::net::TcpStream::connect(self.addr).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!(
            "unbound does not start: try `unbound -d -c {}/unbound.conf`",
            self.directory.display()
        );
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn unbound_answers() {
    let Some(unbound) = Unbound::start() else {
        println!("skipped: unbound is not installed");
        return;
    };
    let addr = unbound.addr;
    on_every_kernel_driver(async || {
        let resolver = resolver(addr);
        let mut lookups = JoinSet::new();
        for index in 0..1_000_u16 {
            let resolver = resolver.clone();
            lookups.spawn(async move {
                let [high, low] = index.to_be_bytes();
                let addrs = resolver.lookup(&format!("n{index}.test."), 80).await.unwrap();
                assert_eq!(addrs, [v4([10, 1, high, low], 80)]);
            });
        }
        while let Some(lookup) = lookups.join_next().await {
            lookup.unwrap();
        }
        // Truncated over UDP.
        assert_eq!(resolver.lookup("big.test.", 80).await.unwrap().len(), 200);
        let error = resolver.lookup("missing.test.", 80).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    });
}
