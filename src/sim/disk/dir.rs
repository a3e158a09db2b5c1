//! Operations on paths: open, create, link, rename, remove. The order of the checks is Linux's, so that a call with several
//! faults fails with the same code.

use std::rc::Rc;

use libc::{
    EBUSY, EEXIST, EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, O_ACCMODE, O_CREAT, O_DIRECTORY, O_EXCL,
    O_NOFOLLOW, O_RDONLY, O_TRUNC,
};

use super::inode::{Contents, Dir, EntryName, Ino, Inode, Node};
use super::journal::Edit;
use super::path::{Last, Links, Parent, check_path};
use super::{FileSystem, ROOT};

/// Permissions that new files and directories do not get.
const UMASK: u32 = 0o022;

impl FileSystem {
    /// Opens or creates a file, and truncates it if the flags say so.
    pub(crate) fn open(&mut self, path: &[u8], flags: i32, mode: u32) -> Result<Ino, i32> {
        let has = |flag: i32| flags & flag == flag;
        if has(O_CREAT | O_DIRECTORY) {
            return Err(EINVAL);
        }
        check_path(path)?;
        let (mut base, mut path): (Ino, Rc<[u8]>) = (self.cwd, Rc::from(path));
        let (mut links, mut slash) = (Links::default(), false);
        let found = loop {
            let parent = self.walk(base, &path, &mut links)?;
            slash |= parent.slash;
            let Last::Name(name) = &parent.last else {
                break self.child(parent.dir, &parent.last)?.ok_or(ENOENT)?;
            };
            if has(O_CREAT) && slash {
                return Err(EISDIR);
            }
            let Some(found) = self.child(parent.dir, &parent.last)? else {
                if !has(O_CREAT) {
                    return Err(ENOENT);
                }
                return self.create(parent.dir, name.clone(), Node::File(Contents::default()), mode & !UMASK);
            };
            match &self.inode(found).node {
                Node::Link(target) if !has(O_CREAT | O_EXCL) && (slash || !has(O_NOFOLLOW)) => {
                    links.follow()?;
                    (base, path) = (parent.dir, target.clone());
                }
                _ => break found,
            }
        };
        let writes = flags & O_ACCMODE != O_RDONLY || has(O_TRUNC);
        match &self.inode(found).node {
            _ if has(O_CREAT | O_EXCL) => Err(EEXIST),
            Node::Dir(_) if has(O_CREAT) || writes => Err(EISDIR),
            Node::Dir(_) => Ok(found),
            Node::File(_) | Node::Link(_) if has(O_DIRECTORY) || slash => Err(ENOTDIR),
            Node::Link(_) => Err(ELOOP),
            Node::File(_) => {
                if has(O_TRUNC) {
                    self.truncate(found, 0)?;
                }
                Ok(found)
            }
        }
    }

    pub(crate) fn make_dir(&mut self, path: &[u8], mode: u32) -> Result<(), i32> {
        let (dir, name) = self.new_name(path, true)?;
        let node = Node::Dir(Dir {
            parent: dir,
            ..Dir::default()
        });
        self.create(dir, name, node, mode & 0o1777 & !UMASK).map(drop)
    }

    /// Creates the directories of a path that are missing. False if a file is in the way.
    pub(crate) fn make_path(&mut self, path: &[u8], mode: u32) -> bool {
        let ends = path
            .iter()
            .enumerate()
            .filter(|&(_, &byte)| byte == b'/')
            .map(|(at, _)| at);
        for end in ends.chain([path.len()]).filter(|&end| end > 0) {
            if self.make_dir(&path[..end], 0o777).is_ok() && end == path.len() {
                // Also bits that the umask takes.
                self.look_up(path, true).map(|ino| self.set_mode(ino, mode)).ok();
            }
        }
        self.look_up(path, true).is_ok_and(|ino| self.is_dir(ino))
    }

    /// Makes a directory the current one, and creates it if it is missing. False if a file is in the way.
    pub(crate) fn enter(&mut self, path: &[u8]) -> bool {
        let is_there = self.make_path(path, 0o755);
        if is_there && let Ok(ino) = self.look_up(path, true) {
            let old = std::mem::replace(&mut self.cwd, ino);
            self.opened(ino);
            self.closed(old);
        }
        is_there
    }

    pub(crate) fn symlink(&mut self, target: &[u8], link: &[u8]) -> Result<(), i32> {
        check_path(target)?;
        let (dir, name) = self.new_name(link, false)?;
        self.create(dir, name, Node::Link(Rc::from(target)), 0o777).map(drop)
    }

    pub(crate) fn read_link(&self, path: &[u8]) -> Result<&[u8], i32> {
        match &self.inode(self.look_up(path, false)?).node {
            Node::Link(target) => Ok(target),
            Node::File(_) | Node::Dir(_) => Err(EINVAL),
        }
    }

    pub(crate) fn hard_link(&mut self, from: &[u8], to: &[u8]) -> Result<(), i32> {
        let ino = self.look_up(from, false)?;
        let (dir, name) = self.new_name(to, false)?;
        self.check_exists(dir)?;
        if self.is_dir(ino) {
            return Err(EPERM);
        }
        self.link(dir, &name, ino);
        self.changed(Edit::new(dir, name, None, Some(ino)));
        Ok(())
    }

    /// Removes a name of a file, or an empty directory.
    pub(crate) fn remove(&mut self, path: &[u8], is_dir: bool) -> Result<(), i32> {
        let Parent { dir, last, slash } = self.parent(path)?;
        let name = match (last, is_dir) {
            (Last::Name(name), _) => name,
            (_, false) => return Err(EISDIR),
            (Last::Dot, true) => return Err(EINVAL),
            (Last::DotDot, true) => return Err(ENOTEMPTY),
            (Last::Root, true) => return Err(EBUSY),
        };
        let ino = self.child(dir, &Last::Name(name.clone()))?.ok_or(ENOENT)?;
        match &self.inode(ino).node {
            Node::Dir(_) if !is_dir => return Err(EISDIR),
            Node::Dir(children) if !children.entries.is_empty() => return Err(ENOTEMPTY),
            Node::File(_) | Node::Link(_) if is_dir || slash => return Err(ENOTDIR),
            _ => {}
        }
        self.unlink(dir, &name);
        self.changed(Edit::new(dir, name, Some(ino), None));
        self.release(ino);
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), i32> {
        let (old, new) = (self.parent(from)?, self.parent(to)?);
        let (Last::Name(old_name), Last::Name(new_name)) = (&old.last, &new.last) else {
            return Err(EBUSY);
        };
        let source = self.child(old.dir, &old.last)?.ok_or(ENOENT)?;
        let target = self.child(new.dir, &new.last)?;
        let is_dir = self.is_dir(source);
        if !is_dir && (old.slash || new.slash) {
            return Err(ENOTDIR);
        }
        if self.is_within(new.dir, source) {
            return Err(EINVAL);
        }
        if target.is_some_and(|target| self.is_within(old.dir, target)) {
            return Err(ENOTEMPTY);
        }
        if target == Some(source) {
            return Ok(());
        }
        self.check_exists(new.dir)?;
        match target.map(|target| &self.inode(target).node) {
            Some(Node::Dir(_)) if !is_dir => return Err(EISDIR),
            Some(Node::File(_) | Node::Link(_)) if is_dir => return Err(ENOTDIR),
            Some(Node::Dir(children)) if !children.entries.is_empty() => return Err(ENOTEMPTY),
            _ => {}
        }
        if target.is_some() {
            self.unlink(new.dir, new_name);
        }
        self.unlink(old.dir, old_name);
        self.link(new.dir, new_name, source);
        if let Node::Dir(moved) = &mut self.inode_mut(source).node {
            moved.parent = new.dir;
        }
        self.changed_by_rename(
            [
                Edit::new(old.dir, old_name.clone(), Some(source), None),
                Edit::new(new.dir, new_name.clone(), target, Some(source)),
            ],
            is_dir,
        );
        if let Some(target) = target {
            self.release(target);
        }
        Ok(())
    }

    /// The directory and name for something new.
    fn new_name(&self, path: &[u8], is_dir: bool) -> Result<(Ino, EntryName), i32> {
        let Parent { dir, last, slash } = self.parent(path)?;
        let exists = self.child(dir, &last)?.is_some();
        match last {
            Last::Name(name) if !exists => match slash && !is_dir {
                true => Err(ENOENT),
                false => Ok((dir, name)),
            },
            _ => Err(EEXIST),
        }
    }

    fn create(&mut self, dir: Ino, name: EntryName, node: Node, mode: u32) -> Result<Ino, i32> {
        self.check_exists(dir)?;
        if self.used >= self.capacity.0 {
            return Err(self.capacity.1);
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, Inode::new(node, mode & 0o7777, self.now));
        self.link(dir, &name, ino);
        self.changed(Edit::new(dir, name, None, Some(ino)));
        Ok(ino)
    }

    /// A directory that was removed while it is open or the current one stays empty.
    fn check_exists(&self, dir: Ino) -> Result<(), i32> {
        match self.inode(dir).links {
            0 => Err(ENOENT),
            _ => Ok(()),
        }
    }

    /// Adds an entry to a directory.
    fn link(&mut self, dir: Ino, name: &EntryName, ino: Ino) {
        let (now, child_is_dir) = (self.now, self.is_dir(ino));
        // A directory's `.` comes and goes with its only name.
        self.inode_mut(ino).links += 1 + u32::from(child_is_dir);
        let parent = self.inode_mut(dir);
        parent.links += u32::from(child_is_dir);
        parent.modified = now;
        if let Node::Dir(dir) = &mut parent.node {
            dir.entries.insert(name.clone(), ino);
        }
    }

    /// Takes an entry out of a directory. The caller releases its inode.
    fn unlink(&mut self, dir: Ino, name: &EntryName) {
        let now = self.now;
        let parent = self.inode_mut(dir);
        parent.modified = now;
        let Node::Dir(Dir { entries, .. }) = &mut parent.node else {
            return;
        };
        let Some(ino) = entries.remove(name) else { return };
        let child_is_dir = self.is_dir(ino);
        self.inode_mut(dir).links -= u32::from(child_is_dir);
        self.inode_mut(ino).links -= 1 + u32::from(child_is_dir);
    }

    /// Whether `dir` is `ancestor` or inside of it.
    fn is_within(&self, mut dir: Ino, ancestor: Ino) -> bool {
        loop {
            match self.dir(dir) {
                _ if dir == ancestor => return true,
                Ok(Dir { parent, .. }) if dir != ROOT => dir = *parent,
                _ => return false,
            }
        }
    }

    fn changed(&mut self, edit: Edit) {
        if let Some(journal) = &mut self.journal {
            journal.changed_entries(vec![edit], false, Vec::new());
        }
        self.write_back();
    }

    fn changed_by_rename(&mut self, edits: [Edit; 2], is_dir: bool) {
        if self.journal.is_none() {
            return;
        }
        // The new path's directories are on the disk before the file is there, else a crash would lose it under both names.
        let mut above = Vec::new();
        let mut dir = edits[1].dir;
        while dir != ROOT && edits[0].dir != edits[1].dir {
            above.push(dir);
            match self.dir(dir) {
                Ok(Dir { parent, .. }) if *parent != dir => dir = *parent,
                _ => break,
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.changed_entries(edits.into(), is_dir, above);
        }
        self.write_back();
    }
}
