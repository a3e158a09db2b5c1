//! Path lookup, as in Linux's `namei.c`.

use std::rc::Rc;

use libc::{ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR};

use super::inode::{Dir, EntryName, Ino, Node};
use super::{FileSystem, ROOT};

/// The longest path, with its NUL.
const MAX_PATH: usize = 4096;
/// The longest name in a directory.
const MAX_NAME: usize = 255;
/// The most symbolic links that one lookup follows.
const MAX_LINKS: u32 = 40;

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Name(EntryName),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// The path consists of slashes.
    Root,
}

/// A path whose last component was not looked up yet.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    /// The directory that contains the last component.
    pub(super) dir: Ino,
    pub(super) last: Last,
    /// Whether a slash ends the path, so that it must name a directory.
    pub(super) slash: bool,
}

/// Counts the symbolic links of one lookup.
#[derive(Default)]
pub(super) struct Links(u32);

impl Links {
    pub(super) fn follow(&mut self) -> Result<(), i32> {
        self.0 += 1;
        match self.0 > MAX_LINKS {
            true => Err(ELOOP),
            false => Ok(()),
        }
    }
}

impl FileSystem {
    /// Looks up a path; a link at its end is followed if `follow` says so or a slash ends the path.
    pub(crate) fn look_up(&self, path: &[u8], follow: bool) -> Result<Ino, i32> {
        check_path(path)?;
        self.resolve(self.cwd, path, follow, &mut Links::default())
    }

    /// The absolute path of what a path names, without links, `.` and `..`.
    pub(crate) fn real_path(&self, path: &[u8]) -> Result<Vec<u8>, i32> {
        check_path(path)?;
        let mut links = Links::default();
        let (mut base, mut path): (Ino, Rc<[u8]>) = (self.cwd, Rc::from(path));
        let mut needs_dir = false;
        loop {
            let Parent { dir, last, slash } = self.walk(base, &path, &mut links)?;
            needs_dir |= slash;
            let found = self.child(dir, &last)?.ok_or(ENOENT)?;
            if let Node::Link(target) = &self.inode(found).node {
                links.follow()?;
                (base, path) = (dir, target.clone());
                continue;
            }
            if needs_dir {
                self.dir(found)?;
            }
            return match last {
                Last::Name(name) => {
                    let mut path = self.path_of(dir)?;
                    if path.len() > 1 {
                        path.push(b'/');
                    }
                    path.extend(&name[..]);
                    Ok(path)
                }
                Last::Dot | Last::DotDot | Last::Root => self.path_of(found),
            };
        }
    }

    /// The absolute path of a directory; `ENOENT` if it was removed.
    fn path_of(&self, mut dir: Ino) -> Result<Vec<u8>, i32> {
        let mut names = Vec::new();
        while dir != ROOT {
            let parent = self.dir(dir)?.parent;
            let entry = self.dir(parent)?.entries.iter().find(|&(_, &ino)| ino == dir);
            names.push(&entry.ok_or(ENOENT)?.0[..]);
            dir = parent;
        }
        names.push(b"");
        names.reverse();
        match names.len() {
            1 => Ok(b"/".to_vec()),
            _ => Ok(names.join(&b'/')),
        }
    }

    /// Looks up all but the last component.
    pub(super) fn parent(&self, path: &[u8]) -> Result<Parent, i32> {
        check_path(path)?;
        self.walk(self.cwd, path, &mut Links::default())
    }

    /// As [`parent`](FileSystem::parent), from the directory `base` on, for paths that links hold.
    pub(super) fn walk(&self, base: Ino, path: &[u8], links: &mut Links) -> Result<Parent, i32> {
        let mut dir = if path.starts_with(b"/") { ROOT } else { base };
        let slash = path.ends_with(b"/");
        let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        let Some(mut part) = parts.next() else {
            let last = Last::Root;
            return Ok(Parent { dir, last, slash });
        };
        for next in parts {
            dir = match part {
                b"." => dir,
                b".." => self.dir(dir)?.parent,
                name => {
                    let found = self.entry(dir, name)?.ok_or(ENOENT)?;
                    match &self.inode(found).node {
                        Node::Link(target) => {
                            links.follow()?;
                            self.resolve(dir, target, true, links)?
                        }
                        Node::File(_) | Node::Dir(_) => found,
                    }
                }
            };
            self.dir(dir)?;
            part = next;
        }
        let last = match part {
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name => Last::Name(Rc::from(name)),
        };
        Ok(Parent { dir, last, slash })
    }

    fn resolve(&self, base: Ino, path: &[u8], follow: bool, links: &mut Links) -> Result<Ino, i32> {
        let Parent { dir, last, slash } = self.walk(base, path, links)?;
        let found = self.child(dir, &last)?.ok_or(ENOENT)?;
        let found = match &self.inode(found).node {
            Node::Link(target) if follow || slash => {
                links.follow()?;
                self.resolve(dir, target, true, links)?
            }
            _ => found,
        };
        if slash {
            self.dir(found)?;
        }
        Ok(found)
    }

    /// What a last component names; links are not followed.
    pub(super) fn child(&self, dir: Ino, last: &Last) -> Result<Option<Ino>, i32> {
        match last {
            Last::Name(name) => self.entry(dir, name),
            Last::Dot => Ok(Some(dir)),
            Last::DotDot => Ok(Some(self.dir(dir)?.parent).filter(|parent| self.inodes.contains_key(parent))),
            Last::Root => Ok(Some(ROOT)),
        }
    }

    /// The inode of an entry.
    fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, i32> {
        let entries = &self.dir(dir)?.entries;
        match name.len() > MAX_NAME {
            true => Err(ENAMETOOLONG),
            false => Ok(entries.get(name).copied()),
        }
    }

    /// A directory; `ENOTDIR` for anything else, and `ENOENT` for the removed parent of a removed directory.
    pub(crate) fn dir(&self, ino: Ino) -> Result<&Dir, i32> {
        match &self.inodes.get(&ino).ok_or(ENOENT)?.node {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) | Node::Link(_) => Err(ENOTDIR),
        }
    }
}

pub(super) fn check_path(path: &[u8]) -> Result<(), i32> {
    match path.len() {
        0 => Err(ENOENT),
        len if len >= MAX_PATH => Err(ENAMETOOLONG),
        _ => Ok(()),
    }
}
