//! On Windows the simulated kernel has no files: programs use the real ones.

use std::io::SeekFrom;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::rand::Rng;
use crate::sys::{Fd, FileOp, OsResult};

pub(crate) enum Files {}

impl Files {
    pub(crate) fn in_memory(_now: SystemTime) -> Option<Files> {
        None
    }

    pub(crate) fn of_host(_now: SystemTime, _rng: Rng) -> Option<Files> {
        None
    }

    pub(crate) fn is_file(_fd: Fd) -> bool {
        false
    }

    pub(crate) fn done_at(&self, _op: &FileOp, _now_ns: u64) -> u64 {
        match *self {}
    }

    pub(crate) fn open_count(&self) -> usize {
        match *self {}
    }

    pub(crate) fn close(&mut self, _fd: Fd) -> bool {
        match *self {}
    }

    pub(crate) fn seek(&mut self, _fd: Fd, _to: SeekFrom) -> Result<u64, i32> {
        match *self {}
    }

    pub(crate) fn missing(&self) -> impl Iterator<Item = PathBuf> {
        std::iter::empty()
    }

    pub(crate) fn take_faults(&mut self, _record: impl FnMut(u64, u64)) {
        match *self {}
    }

    /// # Safety
    ///
    /// None: there are no files.
    pub(crate) unsafe fn perform(&mut self, _op: &FileOp, _now: SystemTime) -> OsResult {
        match *self {}
    }
}

#[cfg(feature = "sim")]
impl Files {
    pub(crate) fn process_crash(&mut self) {
        match *self {}
    }

    pub(crate) fn power_loss(&mut self, _rng: &mut Rng) -> Option<String> {
        match *self {}
    }

    pub(super) fn begin_error(&mut self, _error: super::chaos::DiskError) {
        match *self {}
    }

    pub(super) fn end_error(&mut self, _error: super::chaos::DiskError) {
        match *self {}
    }

    pub(super) fn stall_until(&mut self, _until_ns: u64) {
        match *self {}
    }

    pub(super) fn calm(&mut self) {
        match *self {}
    }
}
