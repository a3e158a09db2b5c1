//! Runs each program of this folder on both drivers, and compares it with its block in the guide.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that takes longer to start hangs.
const START: Duration = Duration::from_secs(300);

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("windlass-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that is killed when this is dropped, with the processes that it has started.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Server {
        Server(command.process_group(0).spawn().expect("the server starts"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago. Another program may take it: then the server ends, and the test fails.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

fn run_on_both_drivers(program: &str, argument: &str) {
    for driver in ["proactor", "reactor"] {
        let mut command = Command::new(program);
        command.env("WINDLASS_DRIVER", driver);
        if !argument.is_empty() {
            command.arg(argument);
        }
        let status = command.status().expect("the program starts");
        assert!(status.success(), "{program} on the {driver}: {status}");
    }
}

/// The path of a program of `PATH` or of Debian's PostgreSQL.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let mut folders = std::env::split_paths(&path).chain(debian);
    folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.exists()))
}

/// Waits until `is_ready`; fails if the server ends first.
fn wait_for(server: &mut Server, mut is_ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_ready() {
        assert!(start.elapsed() < START, "the server does not start");
        assert!(server.0.try_wait().unwrap().is_none(), "the server has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_guide_shows_the_programs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: String| std::fs::read_to_string(root.join(&path)).expect(&path);
    let programs = std::fs::read_dir(root.join("src/bin")).expect("the programs").flatten();
    for program in programs.map(|entry| entry.path()) {
        let name = program.file_stem().expect("a name").to_str().expect("UTF-8");
        // `rust` blocks are also tests of windlass itself, which depends on that library for its tests.
        let (page, language) = match name {
            "websocket" => ("ecosystem", "rust"),
            "lapin" => ("amqp", "rs"),
            _ => ("tokio-libraries", "rs"),
        };
        let block = format!("```{language}\n{}```\n", read(format!("src/bin/{name}.rs")));
        assert!(
            read(format!("../../docs/guide/{page}.md")).contains(&block),
            "docs/guide/{page}.md does not contain src/bin/{name}.rs as it is"
        );
    }
}

#[test]
fn tower_service() {
    run_on_both_drivers(env!("CARGO_BIN_EXE_tower"), "");
}

#[test]
fn websocket_client_and_server() {
    run_on_both_drivers(env!("CARGO_BIN_EXE_websocket"), "");
}

#[test]
fn postgres_client() {
    let (Some(initdb), Some(postgres)) = (find("initdb"), find("postgres")) else {
        return eprintln!("skipped: PostgreSQL is not installed");
    };
    // As root, PostgreSQL refuses to run.
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout == b"0\n");
    let run_as = |program: &Path| match is_root {
        true => {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"])
                .arg(program);
            command
        }
        false => Command::new(program),
    };
    let folder = Folder::new("postgres");
    if is_root {
        let status = Command::new("chown").arg("postgres:postgres").arg(&folder.0).status();
        assert!(status.is_ok_and(|status| status.success()), "chown");
    }
    let data = folder.0.join("data");
    let init = run_as(&initdb)
        .args(["--username=postgres", "--auth=trust", "--no-sync", "--pgdata"])
        .arg(&data)
        .stdout(Stdio::null())
        .status();
    assert!(init.is_ok_and(|status| status.success()), "initdb");
    let mut command = run_as(&postgres);
    command
        .arg("-D")
        .arg(&data)
        .arg("-k")
        .arg(&folder.0)
        .args(["-c", "listen_addresses=", "-c", "fsync=off", "-p", "5432"])
        .stderr(Stdio::null());
    let mut server = Server::start(&mut command);
    let socket = folder.0.join(".s.PGSQL.5432");
    let isready = find("pg_isready").expect("pg_isready comes with PostgreSQL");
    wait_for(&mut server, || {
        let mut command = Command::new(&isready);
        command.arg("--quiet").arg("--host").arg(&folder.0).arg("--port=5432");
        command.status().is_ok_and(|status| status.success())
    });
    run_on_both_drivers(env!("CARGO_BIN_EXE_postgres"), socket.to_str().expect("UTF-8"));
}

#[test]
fn redis_client() {
    let Some(redis) = find("redis-server") else {
        return eprintln!("skipped: redis-server is not installed");
    };
    let folder = Folder::new("redis");
    let port = free_port();
    let mut command = Command::new(redis);
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--port"])
        .arg(port.to_string())
        .arg("--dir")
        .arg(&folder.0)
        .stdout(Stdio::null());
    let mut server = Server::start(&mut command);
    let addr = format!("127.0.0.1:{port}");
    wait_for(&mut server, || std::net::TcpStream::connect(&addr).is_ok());
    run_on_both_drivers(env!("CARGO_BIN_EXE_redis"), &addr);
}

#[test]
fn amqp_client() {
    // Debian's script in `PATH` uses the folders of the system's own server.
    let script = Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
    let (true, Some(epmd)) = (script.exists(), find("epmd")) else {
        return eprintln!("skipped: rabbitmq-server is not installed");
    };
    let folder = Folder::new("rabbitmq");
    let [names, port, peers] = [free_port(), free_port(), free_port()].map(|port| port.to_string());
    // Erlang's name server. Started here, because Erlang would start a daemon that stays.
    let _names = Server::start(Command::new(epmd).args(["-port", &names]));
    let mut command = Command::new(script);
    command
        .current_dir(&folder.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.env("HOME", &folder.0).env("RABBITMQ_MNESIA_BASE", &folder.0);
    command.env(
        "RABBITMQ_NODENAME",
        format!("windlass-{}@localhost", std::process::id()),
    );
    command.env("ERL_EPMD_PORT", names).env("RABBITMQ_DIST_PORT", peers);
    command
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", &port);
    command.env("RABBITMQ_LOG_BASE", &folder.0).env("RABBITMQ_LOGS", "-");
    for (variable, file) in [
        ("RABBITMQ_CONF_ENV_FILE", "environment"),
        ("RABBITMQ_CONFIG_FILE", "configuration"),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", "plugins"),
        ("RABBITMQ_PID_FILE", "pid"),
    ] {
        command.env(variable, folder.0.join(file));
    }
    let mut server = Server::start(&mut command);
    wait_for(&mut server, || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    run_on_both_drivers(env!("CARGO_BIN_EXE_lapin"), &format!("amqp://127.0.0.1:{port}"));
}
