//! reqwest and sqlx, in both modes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use windlass::net::{TcpListener, TcpStream};
use windlass::task::JoinSet;
use windlass_tokio::WithTokio;

use crate::postgres::Postgres;
use crate::support::{Mode, in_every_mode};

/// Spawns a windlass task that may use tokio.
fn spawn<F: Future<Output: 'static> + 'static>(mode: Mode, set: &mut JoinSet<F::Output>, future: F) {
    match mode {
        Mode::Beside => drop(set.spawn(future.with_tokio())),
        Mode::Guest => drop(set.spawn(future)),
    };
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        windlass::spawn(answer(stream)).detach();
    }
}

/// Answers requests on one connection: `/big` with a mebibyte, `/never` not at all, others with their path.
async fn answer(stream: TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            let bytes = stream.read_managed().await?;
            if bytes.is_empty() {
                return Ok(());
            }
            received.extend_from_slice(&bytes);
        };
        let head = String::from_utf8_lossy(&received[..end]).into_owned();
        received.drain(..end);
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = match path.as_str() {
            "/never" => return std::future::pending().await,
            "/big" => vec![b'x'; 1 << 20],
            _ => path.into_bytes(),
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all([head.into_bytes(), body].concat()).await.0?;
    }
}

#[test]
fn reqwest_fetches_from_a_windlass_server() {
    in_every_mode(|mode| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        windlass::spawn(serve(listener)).detach();

        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(60))
            .build()
            .expect("a client");
        let text = client
            .get(format!("{url}/tea"))
            .send()
            .await
            .expect("sent")
            .text()
            .await;
        assert_eq!(text.expect("a body"), "/tea");
        // From many windlass tasks at once.
        let mut tasks = JoinSet::new();
        for number in 0..20 {
            let (client, url) = (client.clone(), url.clone());
            spawn(mode, &mut tasks, async move {
                for round in 0..5 {
                    let path = format!("/{number}/{round}");
                    let response = client.get(format!("{url}{path}")).send().await.expect("sent");
                    assert_eq!(response.text().await.expect("a body"), path);
                }
            });
        }
        while let Some(result) = tasks.join_next().await {
            result.expect("no panic");
        }
        let mut big = client.get(format!("{url}/big")).send().await.expect("sent");
        let mut len = 0;
        while let Some(bytes) = big.chunk().await.expect("a piece") {
            len += bytes.len();
        }
        assert_eq!(len, 1 << 20);
        // reqwest's own timer, and a request that is dropped.
        let never = client.get(format!("{url}/never"));
        let error = never
            .timeout(Duration::from_millis(20))
            .send()
            .await
            .expect_err("a timeout");
        assert!(error.is_timeout(), "{error:?}");
        let never = client.get(format!("{url}/never")).send();
        assert!(windlass::time::timeout(Duration::from_millis(20), never).await.is_err());
        let text = client
            .get(format!("{url}/after"))
            .send()
            .await
            .expect("sent")
            .text()
            .await;
        assert_eq!(text.expect("a body"), "/after");
    });
}

/// A database file that is removed afterwards.
struct Database(PathBuf);

impl Database {
    fn new(name: &str) -> Database {
        Database(std::env::temp_dir().join(format!("windlass-tokio-{}-{name}.db", std::process::id())))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn sqlx_uses_sqlite() {
    in_every_mode(|mode| async move {
        let database = Database::new(&format!("{mode:?}"));
        let _ = std::fs::remove_file(&database.0);
        let options = SqliteConnectOptions::new()
            .filename(&database.0)
            .create_if_missing(true);
        let pool = SqlitePoolOptions::new()
            .max_connections(3)
            .connect_with(options.busy_timeout(Duration::from_secs(60)))
            .await
            .expect("a pool");
        let create = sqlx::query("CREATE TABLE pairs (key INTEGER PRIMARY KEY, value TEXT NOT NULL)");
        create.execute(&pool).await.expect("a table");
        let mut tasks = JoinSet::new();
        for key in 0..20i64 {
            let pool = pool.clone();
            spawn(mode, &mut tasks, async move {
                let mut transaction = pool.begin().await.expect("a transaction");
                let insert = sqlx::query("INSERT INTO pairs VALUES (?, ?)")
                    .bind(key)
                    .bind(format!("value {key}"));
                insert.execute(&mut *transaction).await.expect("a row");
                // Every other transaction is rolled back, by dropping it.
                if key % 2 == 0 {
                    transaction.commit().await.expect("a commit");
                }
            });
        }
        while let Some(result) = tasks.join_next().await {
            result.expect("no panic");
        }
        let rows: Vec<(i64, String)> = sqlx::query_as("SELECT key, value FROM pairs ORDER BY key")
            .fetch_all(&pool)
            .await
            .expect("the rows");
        assert_eq!(rows.len(), 10);
        assert_eq!(rows[9], (18, "value 18".to_owned()));
        pool.close().await;
    });
}

async fn use_postgres(mode: Mode, pool: PgPool) {
    let mut tasks = JoinSet::new();
    for number in 0..20i32 {
        let pool = pool.clone();
        spawn(mode, &mut tasks, async move {
            for round in 0..10 {
                let sum: (i32,) = sqlx::query_as("SELECT $1 + $2")
                    .bind(number)
                    .bind(round)
                    .fetch_one(&pool)
                    .await
                    .expect("a sum");
                assert_eq!(sum.0, number + round);
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.expect("no panic");
    }
    let mut transaction = pool.begin().await.expect("a transaction");
    for statement in [
        "CREATE TEMPORARY TABLE words (word TEXT)",
        "INSERT INTO words VALUES ('ahoy'), ('belay')",
    ] {
        sqlx::query(statement)
            .execute(&mut *transaction)
            .await
            .expect(statement);
    }
    let words: Vec<(String,)> = sqlx::query_as("SELECT word FROM words ORDER BY word")
        .fetch_all(&mut *transaction)
        .await
        .expect("the words");
    assert_eq!(words[1].0, "belay");
    transaction.rollback().await.expect("a rollback");
    // A query that is dropped: its connection is closed or cleaned up, and the pool stays usable.
    let slow = sqlx::query("SELECT pg_sleep(60)").execute(&pool);
    assert!(windlass::time::timeout(Duration::from_millis(50), slow).await.is_err());
    let one: (i32,) = sqlx::query_as("SELECT 1").fetch_one(&pool).await.expect("an answer");
    assert_eq!(one.0, 1);
    drop(pool);
}

#[test]
fn sqlx_uses_postgres() {
    let Some(postgres) = Postgres::start() else {
        return println!("-- SKIPPED: PostgreSQL is not installed");
    };
    let folder = postgres.folder.clone();
    in_every_mode(move |mode| {
        let options = PgConnectOptions::new()
            .socket(&folder)
            .port(5432)
            .username("postgres")
            .database("postgres");
        async move {
            let pool = PgPoolOptions::new()
                .max_connections(4)
                .connect_with(options)
                .await
                .expect("a pool");
            use_postgres(mode, pool).await;
        }
    });
}
