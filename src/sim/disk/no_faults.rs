//! Without the feature `sim` no faults are injected: no [`Faults`] exist.

use super::FileSystem;
use super::inode::Ino;
use crate::sys::FileOp;

pub(crate) enum Faults {}

impl Faults {
    pub(crate) fn before_read(&mut self, _: &FileSystem, _: Ino, _: u64, _: u64) -> Result<u64, i32> {
        match *self {}
    }

    pub(crate) fn before_write(&mut self, _: &FileSystem, _: Ino, _: u64, _: u64) -> Result<u64, i32> {
        match *self {}
    }

    pub(crate) fn done_at(&mut self, _: &FileOp, _: u64) -> u64 {
        match *self {}
    }

    pub(crate) fn take_happened(&mut self, _: impl FnMut(u64, u64)) {
        match *self {}
    }

    pub(crate) fn sync(&mut self, _: &mut FileSystem, _: Ino, _: bool) -> Result<(), i32> {
        match *self {}
    }
}
