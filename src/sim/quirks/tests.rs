//! Each rule of the audit is broken once, by a loop or by an inner driver.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Audit, Quirks};
use crate::driver::{
    Completion, Control, Description, Direction, Driver, DriverCounters, Fd, FdSpace, Medium, Notify, NullFiles, Op,
    OpId, OpResult, Reply, SCRATCH_LEN, Scratch, Start, Wait,
};
use crate::sim::SimDriver;
use crate::sys::{Instant, errno};

/// Calls the driver as a loop does. Owns the memory of all operations.
struct Caller {
    driver: Option<Box<dyn Driver>>,
    audit: Audit,
    /// These are freed after the driver, whatever happens.
    scratch: *mut Scratch,
    buffer: *mut u8,
    ops: Vec<*mut Op>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        // The driver reports what is left, by a panic.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self.driver.take())));
        // SAFETY: they come from boxes, and the driver, which is gone, was the only one that used them.
        unsafe {
            drop(Box::from_raw(self.scratch));
            drop(Box::from_raw(self.buffer.cast::<[u8; LEN]>()));
            self.ops.drain(..).for_each(|op| drop(Box::from_raw(op)));
        }
    }
}

const LEN: usize = 16;
const ID: OpId = OpId::new(0, 0);

impl Caller {
    fn new(inner: impl Driver + 'static) -> Caller {
        let audit = Audit::new();
        let driver = Quirks::none(0).wrap_audited(Box::new(inner), &audit);
        Caller {
            driver: Some(driver),
            audit,
            scratch: Box::into_raw(Box::new(Scratch([std::mem::MaybeUninit::uninit(); SCRATCH_LEN]))),
            buffer: Box::into_raw(Box::new([7u8; LEN])).cast(),
            ops: Vec::new(),
        }
    }

    /// On the simulated kernel.
    fn simulated() -> Caller {
        Caller::new(SimDriver::standalone("a test", NullFiles::Memory))
    }

    fn driver(&mut self) -> &mut dyn Driver {
        &mut **self.driver.as_mut().expect("it was not dropped yet")
    }

    fn pipe(&mut self) -> (Fd, Fd) {
        match self.driver().control(Control::Pipe) {
            Ok(Reply::Pair(reader, writer)) => (reader, writer),
            other => panic!("no pipe: {other:?}"),
        }
    }

    fn close(&mut self, fd: Fd) {
        self.driver().control(Control::Close { fd }).expect("it is open");
    }

    fn recv(&self, fd: Fd) -> Op {
        Op::Recv {
            fd,
            medium: Medium::Pipe,
            drained: false,
            ptr: self.buffer,
            len: LEN,
        }
    }

    fn send(&self, fd: Fd) -> Op {
        Op::Send {
            fd,
            medium: Medium::Pipe,
            ptr: self.buffer,
            len: LEN,
        }
    }

    /// Starts an operation and returns where it is.
    fn start(&mut self, id: OpId, op: Op) -> *mut Op {
        let (op, scratch) = (Box::into_raw(Box::new(op)), self.scratch);
        self.ops.push(op);
        // SAFETY: the op, its buffer and the scratch outlive the driver.
        let start = unsafe { self.driver().start(id, &*op, scratch) };
        assert!(matches!(start, Start::Pending));
        op
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completed = Vec::new();
        self.driver().poll(&mut completed, Wait::Poll).expect("a poll");
        completed
    }

    /// Expects that `act` violates one rule.
    #[track_caller]
    fn violates(mut self, expected: &str, act: impl FnOnce(&mut Caller)) {
        assert_eq!(self.audit.violations(), [""; 0]);
        let panicked = catch_unwind(AssertUnwindSafe(|| act(&mut self))).is_err();
        let violations = self.audit.violations();
        assert!(panicked, "no panic, but {violations:?}");
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert!(violations[0].contains(expected), "{violations:?}");
    }
}

#[test]
fn a_loop_that_keeps_the_contract_is_not_reported() {
    let mut caller = Caller::simulated();
    let (reader, writer) = caller.pipe();
    let (recv, send) = (caller.recv(reader), caller.send(writer));
    let recv = caller.start(ID, recv);
    caller.start(OpId::new(1, 0), send);
    while caller.poll().is_empty() {}
    caller.poll();
    // A cancel may come too late.
    // SAFETY: the op outlives the driver.
    caller.driver().cancel(ID, unsafe { &*recv });
    // The program may close a descriptor whose readiness is waited for.
    let op = Op::Readiness {
        fd: reader,
        direction: Direction::Read,
    };
    let waiting = caller.start(ID.next(), op);
    caller.close(reader);
    // SAFETY: as above.
    caller.driver().cancel(ID.next(), unsafe { &*waiting });
    assert_eq!(caller.poll().len(), 1);
    caller.close(writer);
    drop(caller.driver.take());
    assert_eq!(caller.audit.violations(), [""; 0]);
    assert_eq!(caller.audit.quirks(), []);
}

/// The number that was closed last is the next one, so that a late use of the old one is noticed.
#[test]
fn the_simulated_kernel_reuses_descriptors_at_once() {
    let mut caller = Caller::simulated();
    let (reader, writer) = caller.pipe();
    caller.close(writer);
    caller.close(reader);
    assert_eq!(caller.pipe(), (reader, writer));
    caller.close(reader);
    caller.close(writer);
    assert_eq!(caller.pipe(), (writer, reader));
    caller.close(reader);
    caller.close(writer);
}

#[test]
fn calls_and_operations_on_a_closed_descriptor_are_reported() {
    let mut caller = Caller::simulated();
    let (reader, _) = caller.pipe();
    caller.close(reader);
    caller.violates("LocalName", |caller| {
        let _ = caller.driver().control(Control::LocalName { fd: reader });
    });
    let mut caller = Caller::simulated();
    let (reader, _) = caller.pipe();
    caller.close(reader);
    caller.violates("uses descriptor", |caller| {
        let recv = caller.recv(reader);
        caller.start(ID, recv);
    });
    let mut caller = Caller::simulated();
    let (_, writer) = caller.pipe();
    caller.close(writer);
    caller.violates("uses descriptor", |caller| {
        let send = caller.send(writer);
        // SAFETY: the buffer outlives the driver.
        unsafe { caller.driver().attempt(&send, true) };
    });
    let mut caller = Caller::simulated();
    let (_, writer) = caller.pipe();
    caller.close(writer);
    caller.violates("Close", |caller| caller.close(writer));
}

#[test]
fn closing_under_an_operation_is_reported() {
    let mut caller = Caller::simulated();
    let (reader, _) = caller.pipe();
    let recv = caller.recv(reader);
    caller.start(ID, recv);
    caller.violates("while an operation on the descriptor is in flight", |caller| {
        caller.close(reader);
    });
}

#[test]
fn an_id_in_flight_is_not_started_again() {
    let mut caller = Caller::simulated();
    let (reader, _) = caller.pipe();
    let recv = caller.recv(reader);
    caller.start(ID, recv);
    caller.violates("which is in flight", |caller| {
        caller.start(ID.next(), recv);
    });
}

#[test]
fn a_cancel_of_an_operation_that_was_never_started_is_reported() {
    let mut caller = Caller::simulated();
    let (reader, _) = caller.pipe();
    let recv = caller.recv(reader);
    caller.violates("never started", |caller| caller.driver().cancel(ID, &recv));
}

#[test]
fn a_changed_buffer_or_op_is_reported() {
    let mut caller = Caller::simulated();
    let (_, writer) = caller.pipe();
    let send = caller.send(writer);
    caller.start(ID, send);
    // SAFETY: the buffer outlives the driver.
    unsafe { caller.buffer.add(LEN - 1).write(8) };
    caller.violates("changed while it was in flight", |caller| drop(caller.poll()));

    let mut caller = Caller::simulated();
    let (_, writer) = caller.pipe();
    let send = caller.send(writer);
    let op = caller.start(ID, send);
    // SAFETY: the op outlives the driver.
    match unsafe { &mut *op } {
        Op::Send { len, .. } => *len -= 1,
        _ => unreachable!("it is a send"),
    }
    caller.violates("changed while it was in flight", |caller| drop(caller.poll()));
}

#[test]
fn a_driver_is_not_dropped_with_operations_or_descriptors() {
    let mut caller = Caller::simulated();
    let (reader, _) = caller.pipe();
    let recv = caller.recv(reader);
    caller.start(ID, recv);
    caller.violates("dropped while in flight: recv", |caller| drop(caller.driver.take()));

    let mut caller = Caller::simulated();
    let (reader, writer) = caller.pipe();
    caller.close(writer);
    caller.violates(&format!("never closed: [{reader}]"), |caller| {
        drop(caller.driver.take());
    });
}

/// A driver that reports these ids as completed, and gives out one number again and again.
#[derive(Default)]
struct Wrong {
    completions: VecDeque<OpId>,
}

struct Nothing;

impl Notify for Nothing {
    fn notify(&self) {}
}

// SAFETY: it uses the memory of no operation.
unsafe impl Driver for Wrong {
    fn describe(&self) -> Description {
        Description::new("wrong", Vec::new(), "a test")
    }

    fn now(&self) -> Instant {
        Instant::from_origin(std::time::Duration::from_secs(1))
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        Ok(match call {
            Control::Pipe => Reply::Pair(3, 3),
            _ => Reply::Done,
        })
    }

    unsafe fn start(&mut self, id: OpId, _: &Op, _: *mut Scratch) -> Start {
        self.completions.extend([id, id]);
        Start::Pending
    }

    fn cancel(&mut self, _: OpId, _: &Op) {}

    fn poll(&mut self, completed: &mut Vec<Completion>, _: Wait) -> io::Result<()> {
        completed.extend(self.completions.drain(..).map(|id| Completion {
            id,
            result: OpResult::new(Err(errno::NOT_CONNECTED)),
        }));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        Arc::new(Nothing)
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Own
    }
}

#[test]
fn a_driver_that_gives_out_an_open_descriptor_is_reported() {
    Caller::new(Wrong::default()).violates("which is open", |caller| {
        caller.pipe();
    });
}

#[test]
fn a_driver_that_completes_an_operation_twice_is_reported() {
    let mut caller = Caller::new(Wrong::default());
    let lookup = Op::LookUp {
        query: std::ptr::null(),
        out: std::ptr::null_mut(),
    };
    caller.start(ID, lookup);
    caller.violates("which is not in flight", |caller| drop(caller.poll()));
}
