//! A parallel loop of the caller's.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI64, Ordering};

use crate::{sys, Error, Result, Status};

/// What one call asks its loop to do.
struct Task {
    run: unsafe extern "C" fn(*mut c_void, i64, i64),
    data: *mut c_void,
    grain: i64,
    done: AtomicI64,
}

// SAFETY: the library lets pieces of a task run on any threads at the same time.
unsafe impl Sync for Task {}

/// A piece of a call's work, to be [run](Work::run) or split: what
/// [`ContextOptions::parallel_for`](crate::ContextOptions::parallel_for) is given.
///
/// Pieces may run in any order, on any threads. They cannot be copied, so no part runs twice.
#[must_use = "work that is not run makes the call fail"]
pub struct Work<'s> {
    task: &'s Task,
    begin: i64,
    end: i64,
}

impl<'s> Work<'s> {
    /// How much work it is, in units that the library chooses.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)] // 0 or more, 64 bits
    pub fn len(&self) -> usize {
        (self.end - self.begin) as usize
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// The length from which a piece is worth a thread.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)] // 1 or more, 64 bits
    pub fn grain(&self) -> usize {
        self.task.grain.max(1) as usize
    }

    /// The part of the whole that it is.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)] // 0 or more, 64 bits
    pub fn range(&self) -> Range<usize> {
        self.begin as usize..self.end as usize
    }

    /// The first `len` units, or all if there are fewer, and the rest.
    #[allow(clippy::cast_possible_wrap)] // no more than self.len()
    pub fn split_at(self, len: usize) -> (Self, Self) {
        let middle = self.begin + len.min(self.len()) as i64;
        let rest = Self {
            task: self.task,
            begin: middle,
            end: self.end,
        };
        (
            Self {
                end: middle,
                ..self
            },
            rest,
        )
    }

    /// Pieces of `len` units, the last one of what is left; 0 counts as 1.
    pub fn chunks(self, len: usize) -> Chunks<'s> {
        Chunks {
            rest: Some(self),
            len: len.max(1),
        }
    }

    /// Does the work, on the calling thread.
    pub fn run(self) {
        if self.is_empty() {
            return;
        }
        // SAFETY: the library's function with its argument, on a range inside the whole that no
        // other piece has; `'s` ends before the loop does.
        unsafe { (self.task.run)(self.task.data, self.begin, self.end) };
        self.task
            .done
            .fetch_add(self.end - self.begin, Ordering::AcqRel);
    }
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work {:?}", self.range())
    }
}

/// The pieces of [`Work::chunks`].
#[derive(Debug)]
pub struct Chunks<'s> {
    rest: Option<Work<'s>>,
    len: usize,
}

impl<'s> Iterator for Chunks<'s> {
    type Item = Work<'s>;

    fn next(&mut self) -> Option<Work<'s>> {
        let (piece, rest) = self.rest.take()?.split_at(self.len);
        self.rest = (!rest.is_empty()).then_some(rest);
        Some(piece)
    }
}

/// A closure that logs.
pub(crate) type Log = dyn Fn(i32, &str) + Send + Sync;
/// A closure that is a parallel loop.
pub(crate) type Loop = dyn Fn(Work<'_>) + Send + Sync;

/// What a context calls back; its address is the `user` pointer of both callbacks.
#[derive(Default)]
pub(crate) struct Callbacks {
    pub(crate) log: Option<Box<Log>>,
    pub(crate) parallel: Option<Box<Loop>>,
}

/// What went wrong in a callback, until the call it belongs to has returned to Rust: nothing may
/// unwind through C.
enum Trouble {
    Panic(Box<dyn Any + Send>),
    Unfinished { done: i64, all: i64 },
}

thread_local! {
    // Callbacks run on the thread that makes the call.
    static TROUBLE: Cell<Option<Trouble>> = const { Cell::new(None) };
}

fn remember(trouble: Trouble) {
    // A thread that is ending has no thread-locals: the trouble is lost with it.
    let _ = TROUBLE.try_with(|slot| {
        let first = slot.take().unwrap_or(trouble);
        slot.set(Some(first));
    });
}

fn guarded(callback: impl FnOnce()) {
    // The panic goes on when the call has returned, so no broken invariant is looked at in between.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(callback)) {
        remember(Trouble::Panic(payload));
    }
}

/// To be called after a call of the library has returned: goes on with a panic of a callback; a
/// loop that left work undone is an error.
pub(crate) fn settle() -> Result<()> {
    match TROUBLE.take() {
        None => Ok(()),
        Some(Trouble::Panic(payload)) => resume_unwind(payload),
        Some(Trouble::Unfinished { done, all }) => Err(Error::new(
            Status::ARGUMENT,
            format!(
                "parallel_for returned with {done} of {all} units done; the outputs are incomplete"
            ),
        )),
    }
}

/// To be called where a panic cannot go on.
pub(crate) fn forget_trouble() {
    let _ = TROUBLE.try_with(Cell::take);
}

pub(crate) unsafe extern "C" fn log(user: *mut c_void, level: i32, text: *const std::ffi::c_char) {
    guarded(|| {
        // SAFETY: `user` is the Callbacks of a context that is alive; the text ends with a zero.
        let (callbacks, text) =
            unsafe { (&*user.cast::<Callbacks>(), std::ffi::CStr::from_ptr(text)) };
        if let Some(log) = &callbacks.log {
            log(level, &text.to_string_lossy());
        }
    });
}

pub(crate) unsafe extern "C" fn parallel_for(
    user: *mut c_void,
    n: i64,
    grain: i64,
    run: sys::fastnorm_range_fn,
    data: *mut c_void,
) {
    // SAFETY: `user` is the Callbacks of a context that is alive.
    let callbacks = unsafe { &*user.cast::<Callbacks>() };
    let (Some(parallel), Some(run)) = (&callbacks.parallel, run) else {
        return;
    };
    let task = Task {
        run,
        data,
        grain,
        done: AtomicI64::new(0),
    };
    guarded(|| {
        parallel(Work {
            task: &task,
            begin: 0,
            end: n,
        });
    });
    let done = task.done.load(Ordering::Acquire);
    if done != n {
        remember(Trouble::Unfinished { done, all: n });
    }
}
