//! A PostgreSQL server for the tests, in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the server may take to start.
const START: Duration = Duration::from_secs(120);

pub(crate) struct Postgres {
    /// Where its socket is.
    pub(crate) folder: PathBuf,
    server: Child,
}

impl Postgres {
    /// Starts a server. `None` if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Postgres> {
        let (initdb, postgres, is_ready) = (find("initdb")?, find("postgres")?, find("pg_isready")?);
        let folder = std::env::temp_dir().join(format!("windlass-tokio-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a new folder");
        if is_root() {
            let status = Command::new("chown").arg("postgres:postgres").arg(&folder).status();
            assert!(status.is_ok_and(|status| status.success()), "chown");
        }
        let data = folder.join("data");
        let init = unprivileged(&initdb)
            .args(["--username=postgres", "--auth=trust", "--no-sync", "--pgdata"])
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(init.is_ok_and(|status| status.success()), "initdb");
        let server = unprivileged(&postgres)
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&folder)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-p", "5432"])
            .stderr(Stdio::null())
            .spawn()
            .expect("postgres starts");
        let mut started = Postgres { folder, server };
        let begun = Instant::now();
        loop {
            let mut command = Command::new(&is_ready);
            command
                .arg("--quiet")
                .arg("--host")
                .arg(&started.folder)
                .arg("--port=5432");
            if command.status().is_ok_and(|status| status.success()) {
                return Some(started);
            }
            assert!(begun.elapsed() < START, "the server does not start");
            assert!(
                started.server.try_wait().expect("its state").is_none(),
                "the server has ended"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// As root, PostgreSQL refuses to run.
fn is_root() -> bool {
    static IS_ROOT: OnceLock<bool> = OnceLock::new();
    *IS_ROOT.get_or_init(|| {
        let output = Command::new("id").arg("-u").output();
        output.is_ok_and(|output| output.stdout == b"0\n")
    })
}

fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"])
        .arg(program);
    command
}

/// The path of a program of `PATH` or of Debian's PostgreSQL.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let mut folders = std::env::split_paths(&path).chain(debian);
    folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.exists()))
}
