//! The examples that copy files.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;

use crate::{drivers, example};

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("windlass-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A source that is truncated during the copy: either an error that names it, or a complete copy if all of it had been
/// read. Never zeros and success.
#[test]
fn parallel_cat_fails_if_a_source_shrinks() {
    const LEN: usize = 48 << 20;
    let folder = Folder::new("parallel-cat");
    let (source, out) = (folder.0.join("source"), folder.0.join("out"));
    for driver in drivers() {
        let has_failed = (0..20).any(|_| {
            std::fs::write(&source, vec![7; LEN]).expect("a source");
            if let Err(error) = std::fs::remove_file(&out) {
                assert_eq!(error.kind(), ErrorKind::NotFound);
            }
            let mut copying = example("parallel_cat", driver)
                .args(["--driver", driver, "-o"])
                .args([&out, &source])
                .stderr(Stdio::piped())
                .spawn()
                .expect("the example is built");
            // Once the output has bytes, the copy has begun.
            while std::fs::metadata(&out).map_or(0, |out| out.blocks()) == 0 {
                if copying.try_wait().expect("it was started").is_some() {
                    break;
                }
                std::thread::yield_now();
            }
            let file = std::fs::File::options().write(true).open(&source).expect("open");
            file.set_len(1000).expect("cut");
            let output = copying.wait_with_output().expect("it was started");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() {
                let copied = std::fs::read(&out).expect("an output");
                assert!(copied == vec![7; LEN], "success, but not a copy, on {driver}: {stderr}");
                return false;
            }
            assert_eq!(output.status.code(), Some(1), "{stderr} on {driver}");
            assert!(
                stderr.contains(source.to_str().expect("text")) && stderr.contains("shrank"),
                "{stderr} on {driver}"
            );
            true
        });
        assert!(has_failed, "the source was never truncated in time on {driver}");
    }
}

/// A file in /sys reports a longer length than it has: as if it had shrunk before the first read.
#[cfg(target_os = "linux")]
#[test]
fn parallel_cat_fails_if_a_source_is_shorter_than_its_length() {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    if std::fs::metadata(path).is_err() {
        return println!("-- SKIPPED: there is no {path}");
    }
    let folder = Folder::new("parallel-cat-sys");
    for driver in drivers() {
        let output = example("parallel_cat", driver)
            .args(["--driver", driver, "-o"])
            .arg(folder.0.join("out"))
            .arg(path)
            .output()
            .expect("the example is built");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr} on {driver}");
        assert!(
            stderr.contains(path) && stderr.contains("ended early"),
            "{stderr} on {driver}"
        );
    }
}
