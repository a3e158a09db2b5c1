//! File-system calls on paths, compared with std.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use windlass::fs;

use crate::bytes::numbered;
use crate::support::{Folder, assert_same, on_every_driver, poll_once, quiet, turns, uninterrupted};

/// Every entry below a folder: name, kind, contents, and link target.
fn everything(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
            let what = if kind.is_symlink() {
                format!("to {}", std::fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                folders.push(path.clone());
                "folder".into()
            } else {
                format!("file {:?}", std::fs::read(&path).unwrap())
            };
            found.push((path.strip_prefix(folder).unwrap().to_owned(), what));
        }
    }
    found.sort();
    found
}

/// A folder with one of each kind of entry.
fn populated() -> Folder {
    let folder = Folder::new();
    folder.file("file", "hello");
    folder.file("other", "other");
    std::fs::create_dir(folder.join("empty")).unwrap();
    std::fs::create_dir(folder.join("full")).unwrap();
    folder.file("full/inner", "inner");
    std::os::unix::fs::symlink("file", folder.join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.join("broken")).unwrap();
    std::os::unix::fs::symlink("full", folder.join("folder_link")).unwrap();
    folder
}

const NAMES: [&str; 10] = [
    "file",
    "empty",
    "full",
    "link",
    "broken",
    "folder_link",
    "missing",
    "file/below",
    "missing/below",
    "new",
];

#[derive(Clone, Copy, Debug)]
enum OnOne {
    RemoveFile,
    RemoveDir,
    RemoveDirAll,
    CreateDir,
    CreateDirAll,
    Write,
    Read,
    ReadToString,
    ReadLink,
    Canonicalize,
    TryExists,
    Metadata,
    SymlinkMetadata,
    SetPermissions,
    ReadDir,
}

const ON_ONE: [OnOne; 15] = [
    OnOne::RemoveFile,
    OnOne::RemoveDir,
    OnOne::RemoveDirAll,
    OnOne::CreateDir,
    OnOne::CreateDirAll,
    OnOne::Write,
    OnOne::Read,
    OnOne::ReadToString,
    OnOne::ReadLink,
    OnOne::Canonicalize,
    OnOne::TryExists,
    OnOne::Metadata,
    OnOne::SymlinkMetadata,
    OnOne::SetPermissions,
    OnOne::ReadDir,
];

fn read_only() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o444)
}

/// A call's result as text, without the folder's own path.
async fn ours(call: OnOne, path: &Path) -> std::io::Result<String> {
    Ok(match call {
        OnOne::RemoveFile => format!("{:?}", fs::remove_file(path).await?),
        OnOne::RemoveDir => format!("{:?}", fs::remove_dir(path).await?),
        OnOne::RemoveDirAll => format!("{:?}", fs::remove_dir_all(path).await?),
        OnOne::CreateDir => format!("{:?}", fs::create_dir(path).await?),
        OnOne::CreateDirAll => format!("{:?}", fs::create_dir_all(path).await?),
        OnOne::Write => format!("{:?}", fs::write(path, "written").await?),
        OnOne::Read => format!("{:?}", fs::read(path).await?),
        OnOne::ReadToString => fs::read_to_string(path).await?,
        OnOne::ReadLink => format!("{:?}", fs::read_link(path).await?),
        OnOne::Canonicalize => format!("{:?}", fs::canonicalize(path).await?.file_name()),
        OnOne::TryExists => format!("{:?}", fs::try_exists(path).await?),
        OnOne::Metadata => format!("{:?}", fs::metadata(path).await?.len()),
        OnOne::SymlinkMetadata => format!("{:?}", fs::symlink_metadata(path).await?.is_symlink()),
        OnOne::SetPermissions => format!("{:?}", fs::set_permissions(path, read_only()).await?),
        OnOne::ReadDir => {
            let mut names = BTreeSet::new();
            let mut entries = fs::read_dir(path).await?;
            while let Some(entry) = entries.next_entry().await? {
                let kind = entry.file_type().await?;
                let theirs = std::fs::symlink_metadata(entry.path())?.file_type();
                assert_eq!(
                    [kind.is_file(), kind.is_dir(), kind.is_symlink()],
                    [theirs.is_file(), theirs.is_dir(), theirs.is_symlink()]
                );
                assert_eq!(entry.metadata().await?.file_type(), kind);
                names.insert(entry.file_name());
            }
            format!("{names:?}")
        }
    })
}

fn theirs(call: OnOne, path: &Path) -> std::io::Result<String> {
    use std::fs;
    Ok(match call {
        OnOne::RemoveFile => format!("{:?}", fs::remove_file(path)?),
        OnOne::RemoveDir => format!("{:?}", fs::remove_dir(path)?),
        OnOne::RemoveDirAll => format!("{:?}", fs::remove_dir_all(path)?),
        OnOne::CreateDir => format!("{:?}", fs::create_dir(path)?),
        OnOne::CreateDirAll => format!("{:?}", fs::create_dir_all(path)?),
        OnOne::Write => format!("{:?}", fs::write(path, "written")?),
        OnOne::Read => format!("{:?}", fs::read(path)?),
        OnOne::ReadToString => fs::read_to_string(path)?,
        OnOne::ReadLink => format!("{:?}", fs::read_link(path)?),
        OnOne::Canonicalize => format!("{:?}", fs::canonicalize(path)?.file_name()),
        OnOne::TryExists => format!("{:?}", fs::exists(path)?),
        OnOne::Metadata => format!("{:?}", fs::metadata(path)?.len()),
        OnOne::SymlinkMetadata => format!("{:?}", fs::symlink_metadata(path)?.is_symlink()),
        OnOne::SetPermissions => format!("{:?}", fs::set_permissions(path, read_only())?),
        OnOne::ReadDir => {
            let entries: std::io::Result<Vec<_>> = fs::read_dir(path)?.collect();
            let names: BTreeSet<_> = entries?.iter().map(|entry| entry.file_name()).collect();
            format!("{names:?}")
        }
    })
}

/// Each call on each kind of entry: the same result and the same effect as std, and an error that names the path.
#[test]
fn calls_on_one_path_do_what_std_does() {
    on_every_driver(|case| {
        // Miri does not support half of these calls.
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let (mut our, mut their) = (populated(), populated());
            let pristine = everything(our.path());
            for call in ON_ONE {
                for name in NAMES {
                    let what = format!("{call:?} of {name}");
                    let answer = ours(call, &our.join(name)).await;
                    if let Err(error) = &answer {
                        let path = our.join(name);
                        assert!(error.to_string().contains(path.to_str().unwrap()), "{what}: {error}");
                    }
                    assert_same(&what, answer, theirs(call, &their.join(name)));
                    assert_eq!(everything(our.path()), everything(their.path()), "{what}");
                    let mode = |folder: &Folder| std::fs::metadata(folder.join(name)).map(|it| it.permissions()).ok();
                    assert_eq!(mode(&our), mode(&their), "{what}");
                    if matches!(call, OnOne::SetPermissions) || everything(our.path()) != pristine {
                        (our, their) = (populated(), populated());
                    }
                }
            }
        });
    });
}

#[test]
fn calls_on_two_paths_do_what_std_does() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let (mut our, mut their) = (populated(), populated());
            let pristine = everything(our.path());
            for from in NAMES {
                for to in NAMES {
                    for call in 0..4 {
                        let (our_from, our_to) = (our.join(from), our.join(to));
                        let (their_from, their_to) = (their.join(from), their.join(to));
                        let what = format!("{call} from {from} to {to}");
                        // A symbolic link stores its target as given, so the target must not be a path inside one of
                        // the two folders.
                        let (answer, expected) = match call {
                            0 => (fs::rename(&our_from, &our_to).await.map(|()| 0), {
                                std::fs::rename(their_from, their_to).map(|()| 0)
                            }),
                            1 => (fs::hard_link(&our_from, &our_to).await.map(|()| 0), {
                                std::fs::hard_link(their_from, their_to).map(|()| 0)
                            }),
                            2 => (fs::copy(&our_from, &our_to).await, {
                                uninterrupted(|| std::fs::copy(&their_from, &their_to))
                            }),
                            _ => (fs::symlink(from, &our_to).await.map(|()| 0), {
                                std::os::unix::fs::symlink(from, their_to).map(|()| 0)
                            }),
                        };
                        if let Err(error) = &answer {
                            let text = error.to_string();
                            assert!(text.contains(our_to.to_str().unwrap()), "{what}: {text}");
                            assert!(text.contains(from), "{what}: {text}");
                        }
                        assert_same(&what, answer, expected);
                        assert_eq!(everything(our.path()), everything(their.path()), "{what}");
                        if everything(our.path()) != pristine {
                            (our, their) = (populated(), populated());
                        }
                    }
                }
            }
        });
    });
}

#[test]
fn create_dir_all_does_what_std_does() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let names = [
                "a/b/c/d",
                "a/../b",
                "a/./b/",
                "full/../x/../y",
                "file/x/y",
                "file",
                "broken",
                "broken/x",
                "link/x",
                "folder_link/x/y",
                "full/inner/x",
                "empty",
                "empty/..",
                "..",
            ];
            for name in names {
                let (our, their) = (populated(), populated());
                let answer = fs::create_dir_all(our.join(name)).await;
                assert_same(name, answer, std::fs::create_dir_all(their.join(name)));
                assert_eq!(everything(our.path()), everything(their.path()), "{name}");
            }
            for path in ["", "/", ".", "src", "src/../src", "Cargo.toml"] {
                assert_same(path, fs::create_dir_all(path).await, std::fs::create_dir_all(path));
            }
        });
    });
}

/// Links are removed, their targets are not.
#[test]
fn remove_dir_all_does_not_follow_links() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let (folder, precious) = (Folder::new(), populated());
            let before = everything(precious.path());
            std::fs::create_dir_all(folder.join("a/b/c")).unwrap();
            std::os::unix::fs::symlink(precious.path(), folder.join("a/b/link")).unwrap();
            std::os::unix::fs::symlink(precious.join("file"), folder.join("a/link")).unwrap();
            fs::remove_dir_all(folder.join("a")).await.unwrap();
            assert_eq!(everything(folder.path()), []);
            // A path that is itself a link: at most the link is removed.
            std::os::unix::fs::symlink(precious.path(), folder.join("link")).unwrap();
            let _ = fs::remove_dir_all(folder.join("link")).await;
            assert_eq!(everything(precious.path()), before);
        });
    });
}

#[test]
fn read_dir_lists_every_entry_once() {
    on_every_driver(|case| {
        case.run(async {
            // A pool thread fetches 256 entries at once.
            let counts = if cfg!(miri) {
                vec![0, 2]
            } else {
                vec![0, 1, 255, 256, 257, 512, 1_000]
            };
            for count in counts {
                let folder = Folder::new();
                let expected: BTreeSet<_> = (0..count).map(|number| format!("{number}").into()).collect();
                for number in 0..count {
                    folder.file(&number.to_string(), "");
                }
                for drops in [false, true] {
                    let mut names = BTreeSet::new();
                    let mut entries = fs::read_dir(folder.path()).await.unwrap();
                    loop {
                        if drops {
                            // The entry that a dropped call was waiting for is returned by the next call.
                            let polled = poll_once(Box::pin(entries.next_entry()).as_mut()).await;
                            if let std::task::Poll::Ready(Ok(Some(entry))) = polled {
                                assert!(names.insert(entry.file_name()));
                            }
                            turns(count as u64 % 3).await;
                        }
                        let Some(entry) = entries.next_entry().await.unwrap() else {
                            break;
                        };
                        assert!(entry.file_type().await.unwrap().is_file());
                        assert_eq!(entry.path(), folder.path().join(entry.file_name()));
                        assert!(names.insert(entry.file_name()), "{entry:?} came twice");
                    }
                    assert!(names == expected, "{} of {count} entries, drops: {drops}", names.len());
                    assert!(entries.next_entry().await.unwrap().is_none());
                }
            }
        });
    });
}

#[test]
fn whole_files_are_read_and_written() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let path = folder.join("a");
            let lens = if cfg!(miri) {
                vec![0, 5]
            } else {
                vec![0, 1, 4_095, 4_096, 4_097, 300_000, 5 << 20]
            };
            for len in lens {
                let bytes = numbered(len);
                fs::write(&path, bytes.clone()).await.unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes);
                assert!(fs::read(&path).await.unwrap() == bytes, "{len} bytes");
            }
            // Writing a shorter file truncates the longer one.
            fs::write(&path, "grüße").await.unwrap();
            assert_eq!(fs::read_to_string(&path).await.unwrap(), "grüße");
            fs::write(&path, b"ok \xFF").await.unwrap();
            let error = fs::read_to_string(&path).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        });
    });
}

/// A path with a NUL byte is rejected before a system call sees it truncated.
#[test]
fn a_nul_in_a_path_is_an_error() {
    on_every_driver(|case| {
        case.run(async {
            let folder = populated();
            let nul = folder.path().join(OsStr::from_bytes(b"file\0x"));
            for call in ON_ONE {
                let (answer, expected) = (ours(call, &nul).await, theirs(call, &nul));
                if let Err(error) = &answer {
                    assert!(error.to_string().contains("file\0x"), "{call:?}: {error}");
                }
                assert_same(call, answer, expected);
            }
            let fine = folder.join("new");
            for (from, to) in [(&nul, &fine), (&fine, &nul)] {
                let kinds = [
                    fs::rename(from, to).await.unwrap_err().kind(),
                    fs::hard_link(from, to).await.unwrap_err().kind(),
                    fs::symlink(from, to).await.unwrap_err().kind(),
                ];
                assert_eq!(kinds, [ErrorKind::InvalidInput; 3]);
                let expected = std::fs::copy(from, to).map(drop);
                assert_same("copy", fs::copy(from, to).await.map(drop), expected);
            }
            assert!(!fine.exists());
            assert_eq!(std::fs::read(folder.join("file")).unwrap(), b"hello");
        });
    });
}

/// Dropped calls are cancelled or run to the end, and leave nothing behind.
#[test]
fn dropped_calls_leave_no_operation() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let folder = populated();
            for _ in 0..crate::support::rounds() / 20 {
                for call in [
                    OnOne::CreateDir,
                    OnOne::Metadata,
                    OnOne::Read,
                    OnOne::ReadLink,
                    OnOne::ReadDir,
                ] {
                    drop(poll_once(Box::pin(ours(call, &folder.join("full"))).as_mut()).await);
                    let (from, to) = (folder.join("file"), folder.join("file"));
                    drop(poll_once(Box::pin(fs::rename(from, to)).as_mut()).await);
                }
            }
            quiet().await;
            assert_eq!(windlass::counters().ops, 0);
            assert_eq!(windlass::counters().stale_completions, 0);
        });
    });
}
