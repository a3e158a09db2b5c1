//! Without the feature `sim` no faults are injected: no [`Faults`] exist.

use super::FileSystem;
use super::inode::Ino;

pub(crate) enum Faults {}

impl Faults {
    pub(crate) fn before_read(&mut self, _: &FileSystem, _: Ino, _: u64, _: u64) -> Result<u64, i32> {
        match *self {}
    }

    pub(crate) fn before_write(&mut self, _: &FileSystem, _: Ino, _: u64, _: u64) -> Result<u64, i32> {
        match *self {}
    }

    pub(crate) fn sync(&mut self, _: &mut FileSystem, _: Ino, _: bool) -> Result<(), i32> {
        match *self {}
    }
}
