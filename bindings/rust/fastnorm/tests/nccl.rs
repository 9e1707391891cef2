//! Ranks on communicators of a library that pretends to be NCCL: the same bits by peers, by NCCL
//! and from one thread; and what is refused.

use std::env;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use fastnorm::{
    load_nccl, nccl_allreduce_norm_all, nccl_sequence_norm_all, nccl_version, set_nccl_functions,
    sys, Context, DType, Nccl, NcclCall, NcclOptions, NcclRank, NcclSequenceNorm, Norm,
    PeerAlgorithm, PeerOptions, PeerSumRounding, Result, Status, Stream, Tensor, TensorMut,
    Workspace,
};

mod common;
use common::whole_numbers;

const ROWS: usize = 6;
const COLUMNS: usize = 32;
const SHAPE: [usize; 2] = [ROWS, COLUMNS];
const ALL_REDUCE: c_int = 0;
const REDUCE_SCATTER: c_int = 1;

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The address of the library that pretends; None where the environment names none.
fn library() -> Option<usize> {
    static LIBRARY: OnceLock<Option<usize>> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let Ok(path) = env::var("FASTNORM_TEST_NCCL") else {
            println!("SKIP FASTNORM_TEST_NCCL names no library that pretends to be NCCL");
            return None;
        };
        let path = CString::new(path).unwrap();
        // SAFETY: a path that ends with a zero.
        let library = unsafe { dlopen(path.as_ptr(), 2) } as usize;
        assert_ne!(library, 0, "{path:?} cannot be loaded");
        Some(library)
    })
}

/// A function of that library.
///
/// # Safety
/// It has the type `F`.
unsafe fn function<F: Copy>(name: &CStr) -> F {
    let library = library().expect("a library") as *mut c_void;
    // SAFETY: the library is loaded; the caller knows the type of what is found.
    unsafe {
        let address = dlsym(library, name.as_ptr());
        assert!(!address.is_null(), "{name:?}");
        std::mem::transmute_copy(&address)
    }
}

fn functions() -> sys::fastnorm_nccl_functions {
    // SAFETY: the names are NCCL's, whose types the fields have.
    unsafe {
        sys::fastnorm_nccl_functions {
            get_version: function(c"ncclGetVersion"),
            comm_count: function(c"ncclCommCount"),
            comm_user_rank: function(c"ncclCommUserRank"),
            comm_cu_device: function(c"ncclCommCuDevice"),
            all_reduce: function(c"ncclAllReduce"),
            reduce_scatter: function(c"ncclReduceScatter"),
            all_gather: function(c"ncclAllGather"),
            group_start: function(c"ncclGroupStart"),
            group_end: function(c"ncclGroupEnd"),
            get_error_string: function(c"ncclGetErrorString"),
            ..sys::fastnorm_nccl_functions::new()
        }
    }
}

/// The functions are the process's: one test at a time. None where there is no library.
fn begin() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    library()?;
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: they are those of a library that stays loaded.
    unsafe { set_nccl_functions(Some(&functions())) }.unwrap();
    Some(guard)
}

/// Communicators of one group.
struct Comms(Vec<*mut c_void>);

// SAFETY: the library that pretends takes them from any thread.
unsafe impl Sync for Comms {}

impl Comms {
    fn new(ranks: usize) -> Self {
        let mut comms = vec![ptr::null_mut(); ranks];
        // SAFETY: there is room for so many.
        unsafe {
            let create: unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) =
                function(c"fake_nccl_create");
            create(c_int::try_from(ranks).unwrap(), 0, comms.as_mut_ptr());
        }
        Self(comms)
    }

    fn at(&self, rank: usize) -> *mut c_void {
        self.0[rank]
    }

    fn calls(&self, rank: usize, operation: c_int) -> c_int {
        // SAFETY: the communicator is there.
        unsafe {
            let calls: unsafe extern "C" fn(*mut c_void, c_int) -> c_int =
                function(c"fake_nccl_calls");
            calls(self.0[rank], operation)
        }
    }

    /// The rank's next call of an operation fails.
    fn fail(&self, rank: usize, operation: c_int) {
        // SAFETY: as above.
        unsafe {
            let fail: unsafe extern "C" fn(*mut c_void, c_int) = function(c"fake_nccl_fail");
            fail(self.0[rank], operation);
        }
    }
}

impl Drop for Comms {
    fn drop(&mut self) {
        // SAFETY: they were created so, and no handle is left.
        unsafe {
            let destroy: unsafe extern "C" fn(*const *mut c_void, c_int) =
                function(c"fake_nccl_destroy");
            destroy(self.0.as_ptr(), c_int::try_from(self.0.len()).unwrap());
        }
    }
}

fn options() -> NcclOptions {
    NcclOptions::new(DType::F32, COLUMNS)
}

/// The results of a function for all ranks, each on a thread.
fn on_all<R: Send>(ranks: usize, run: impl Fn(usize) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || run(rank)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn ranks_of<'c>(context: &'c Context, comms: &Comms) -> Vec<NcclRank<'c>> {
    let rank = |&comm| NcclRank {
        context,
        comm,
        stream: Stream::DEFAULT,
    };
    comms.0.iter().map(rank).collect()
}

fn group<'c>(
    context: &'c Context,
    comms: &Comms,
    options: NcclOptions,
    together: bool,
) -> Result<Vec<Nccl<'c>>> {
    if together {
        // SAFETY: each test drops its handles before its communicators.
        return unsafe { options.create_all(&ranks_of(context, comms)) };
    }
    on_all(comms.0.len(), |rank| {
        // SAFETY: as above.
        unsafe { options.create(context, comms.at(rank), Stream::DEFAULT) }
    })
    .into_iter()
    .collect()
}

fn part(rank: usize) -> Vec<f32> {
    whole_numbers(ROWS * COLUMNS, rank as u64 + 1)
}

fn sum(ranks: usize) -> Vec<f32> {
    let mut total = vec![0f32; ROWS * COLUMNS];
    for rank in 0..ranks {
        for (t, v) in total.iter_mut().zip(part(rank)) {
            *t += v;
        }
    }
    total
}

fn zeros() -> Vec<f32> {
    vec![0f32; ROWS * COLUMNS]
}

#[test]
fn allreduce_is_a_sum_and_one_norm() -> Result<()> {
    let Some(_guard) = begin() else { return Ok(()) };
    let context = Context::cpu()?;
    let weight: Vec<f32> = whole_numbers(COLUMNS, 70);
    let residual = part(90);
    let peers = options()
        .fixed_order(true)
        .algorithm(PeerAlgorithm::TwoShot)
        .one_shot_bytes(64)
        .rings(2)
        .wait(Duration::from_secs(20));
    for (ranks, options, all_reduces, together) in [
        (2, peers, 0, false),
        (3, options().peer_bytes(64), 1, false),
        (3, options().no_peers(true), 1, false),
        (2, options().no_peers(true), 1, true),
    ] {
        let comms = Comms::new(ranks);
        let handles = group(&context, &comms, options, together)?;
        let total = sum(ranks);
        let (mut wanted, mut wanted_h) = (zeros(), zeros());
        Norm::layer(1e-3)
            .x(Tensor::new(&total, &SHAPE)?)
            .residual(Tensor::new(&residual, &SHAPE)?)
            .residual_out(TensorMut::new(&mut wanted_h, &SHAPE)?)
            .weight(Tensor::new(&weight, &[COLUMNS])?)
            .y(TensorMut::new(&mut wanted, &SHAPE)?)
            .run(&context)?;
        let x: Vec<_> = (0..ranks).map(part).collect();
        let mut outputs = vec![(zeros(), zeros()); ranks];
        let mut calls = Vec::new();
        for ((handle, x), (y, h)) in handles.iter().zip(&x).zip(&mut outputs) {
            let norm = Norm::layer(1e-3)
                .x(Tensor::new(x, &SHAPE)?)
                .residual(Tensor::new(&residual, &SHAPE)?)
                .residual_out(TensorMut::new(h, &SHAPE)?)
                .weight(Tensor::new(&weight, &[COLUMNS])?)
                .y(TensorMut::new(y, &SHAPE)?);
            let norm = handle.allreduce(norm);
            let info = handle.allreduce_norm_query(&norm)?;
            assert!(info.workspace_bytes >= (ROWS * COLUMNS * 4) as u64);
            handle.allreduce_norm_prepare(&norm)?;
            calls.push(NcclCall::new(handle, norm));
        }
        if together {
            nccl_allreduce_norm_all(&mut calls)?;
        } else {
            thread::scope(|scope| {
                for call in &mut calls {
                    scope.spawn(|| call.handle.allreduce_norm(&mut call.norm).unwrap());
                }
            });
        }
        drop(calls);
        for (rank, output) in outputs.iter().enumerate() {
            assert_eq!(output, &(wanted.clone(), wanted_h.clone()));
            assert_eq!(comms.calls(rank, ALL_REDUCE), all_reduces);
        }
    }
    Ok(())
}

#[test]
fn sequence_parallel() -> Result<()> {
    let Some(_guard) = begin() else { return Ok(()) };
    let context = Context::cpu()?;
    let (ranks, total, residual) = (2, sum(2), part(90));
    let (mut wanted, mut wanted_h) = (zeros(), zeros());
    Norm::rms(1e-3)
        .x(Tensor::new(&total, &SHAPE)?)
        .residual(Tensor::new(&residual, &SHAPE)?)
        .residual_out(TensorMut::new(&mut wanted_h, &SHAPE)?)
        .y(TensorMut::new(&mut wanted, &SHAPE)?)
        .run(&context)?;
    let (own, shape) = (ROWS / ranks * COLUMNS, [ROWS / ranks, COLUMNS]);
    for (gather, together) in [(true, false), (false, false), (true, true), (false, true)] {
        let comms = Comms::new(ranks);
        let handles = group(&context, &comms, options(), together)?;
        let x: Vec<_> = (0..ranks).map(part).collect();
        let mut outputs = vec![(zeros(), vec![0f32; own]); ranks];
        let mut calls = Vec::new();
        for (rank, (y, h)) in outputs.iter_mut().enumerate() {
            let norm = Norm::rms(1e-3)
                .x(Tensor::new(&x[rank], &SHAPE)?)
                .residual(Tensor::new(&residual[rank * own..][..own], &shape)?)
                .residual_out(TensorMut::new(h, &shape)?)
                .y(TensorMut::new(y, &SHAPE)?);
            let norm = NcclSequenceNorm::new(norm).gather(gather);
            let info = handles[rank].sequence_norm_query(&norm)?;
            assert!(info.workspace_bytes >= (own * 4) as u64);
            handles[rank].sequence_norm_prepare(&norm)?;
            calls.push(NcclCall::new(&handles[rank], norm));
        }
        if together {
            nccl_sequence_norm_all(&mut calls)?;
        } else {
            thread::scope(|scope| {
                for call in &mut calls {
                    scope.spawn(|| call.handle.sequence_norm(&mut call.norm).unwrap());
                }
            });
        }
        drop(calls);
        for (rank, (y, h)) in outputs.iter().enumerate() {
            let mut mine = wanted.clone();
            for (i, v) in mine.iter_mut().enumerate() {
                if !gather && i / own != rank {
                    *v = 0.0; // tokens of other ranks
                }
            }
            assert_eq!((y, &h[..]), (&mine, &wanted_h[rank * own..][..own]));
            assert_eq!(comms.calls(rank, REDUCE_SCATTER), 1);
        }
    }
    Ok(())
}

#[test]
fn peers_of_handles() -> Result<()> {
    let Some(_guard) = begin() else { return Ok(()) };
    let context = Context::cpu()?;
    let comms = Comms::new(2);
    let handles = group(&context, &comms, options(), false)?;
    for handle in &handles {
        let peer = handle.peer()?.expect("a peer");
        let state = peer.state()?;
        assert_eq!(
            (state.connected, state.error, peer.ranks()),
            (true, None, 0)
        );
        peer.reset()?;
    }
    assert!(ptr::eq(handles[0].context(), &context) && !handles[0].as_ptr().is_null());
    assert!(format!("{:?}", handles[0]).starts_with("Nccl { context: "));
    drop(handles);
    let handles = group(&context, &comms, options().no_peers(true), true)?;
    assert!(handles[1].peer()?.is_none());
    Ok(())
}

fn refused<T>(result: Result<T>, status: Status, text: &str) {
    let error = result.err().unwrap_or_else(|| panic!("no error: {text}"));
    assert_eq!(error.status(), status, "{error}");
    assert!(error.message().contains(text), "{error}, not: {text}");
    assert_eq!(error.device_error(), 0);
}

#[test]
fn options_out_of_range() -> Result<()> {
    let Some(_guard) = begin() else { return Ok(()) };
    assert_eq!(nccl_version()?, 22809);
    let context = Context::cpu()?;
    let comms = Comms::new(1);
    for (options, status, text) in [
        (
            NcclOptions::new(DType::F32, 0),
            Status::ARGUMENT,
            "options.max_columns is 0; required: 1 to 65536",
        ),
        (
            NcclOptions::new(DType::I32, 8),
            Status::DTYPE,
            "options.dtype is 0x",
        ),
        (
            options().no_peers(true).fixed_order(true),
            Status::UNSUPPORTED,
            "FASTNORM_NCCL_FIXED_ORDER",
        ),
    ] {
        refused(group(&context, &comms, options, false), status, text);
    }
    let two = Comms::new(2);
    let options_257 = options().rings(257);
    let result = group(&context, &two, options_257, true);
    refused(result, Status::ARGUMENT, "options.rings is 257");
    let mut ranks = ranks_of(&context, &two);
    ranks[1].comm = ptr::null_mut();
    // SAFETY: a communicator that is null is refused.
    let result = unsafe { options().create_all(&ranks) };
    let text = "rank[1]: comm is NULL; required: an ncclComm_t";
    refused(result, Status::ARGUMENT, text);
    // SAFETY: there is none.
    let result = unsafe { options().create_all(&[]) };
    refused(result, Status::ARGUMENT, "count is 0; required: >= 1");
    let mut broken = functions();
    broken.all_gather = None;
    // SAFETY: it is refused.
    let result = unsafe { set_nccl_functions(Some(&broken)) };
    refused(result, Status::ARGUMENT, "functions.all_gather is NULL");
    // SAFETY: it names none.
    unsafe { set_nccl_functions(None) }?; // NCCL itself does not serve the memory of a CPU
    let result = group(&context, &comms, options(), false);
    refused(result, Status::UNSUPPORTED, "NCCL is for CUDA (2)");
    refused(
        load_nccl(Path::new("a\0b")),
        Status::ARGUMENT,
        "a path without a zero byte",
    );
    Ok(())
}

#[test]
fn calls_refused() -> Result<()> {
    let Some(_guard) = begin() else { return Ok(()) };
    let context = Context::cpu()?;
    let comms = Comms::new(2);
    let handles = group(&context, &comms, options().no_peers(true), true)?;
    let first = &handles[0];
    let (x, mut y, mut z) = (part(0), zeros(), zeros());
    let x = || Tensor::new(&x, &SHAPE).unwrap();
    {
        let y = TensorMut::new(&mut y, &SHAPE)?;
        let exact = first.allreduce(Norm::rms(0.0).x(x()).y(y));
        let mut exact = exact.sum_rounding(PeerSumRounding::Exact);
        let result = first.allreduce_norm(&mut exact);
        refused(result, Status::UNSUPPORTED, "sum_rounding is 1");
    }
    let negative = Norm::rms(-1.0).x(x()).y(TensorMut::new(&mut y, &SHAPE)?);
    let mut negative = first.allreduce(negative);
    let result = first.allreduce_norm(&mut negative);
    refused(result, Status::ARGUMENT, "norm.eps is -1");
    refused(
        first.allreduce_norm(&mut first.allreduce(Norm::rms(0.0))),
        Status::ARGUMENT,
        "norm.x is NULL",
    );
    let good = Norm::rms(0.0).x(x()).y(TensorMut::new(&mut z, &SHAPE)?);
    let mut calls = [
        NcclCall::new(first, first.allreduce(good)),
        NcclCall::new(&handles[1], negative),
    ];
    let result = nccl_allreduce_norm_all(&mut calls);
    refused(result, Status::ARGUMENT, "args[1]: norm.eps is -1");
    refused(
        nccl_allreduce_norm_all(&mut []),
        Status::ARGUMENT,
        "count is 0",
    );
    let [call, _] = &mut calls;
    // SAFETY: it is refused for its size.
    let little = unsafe { Workspace::from_raw(256 as *mut c_void, 1) };
    let result = first.allreduce_norm_with(&mut call.norm, Stream::DEFAULT, little);
    refused(result, Status::ARGUMENT, "workspace_bytes is 1; required:");
    let peer = PeerOptions::new(0, 2, DType::F32, 4).create(&context)?;
    let mut of_a_peer = fastnorm::PeerAllreduceNorm::new(&peer, Norm::rms(0.0));
    let result = first.allreduce_norm(&mut of_a_peer);
    let text = "required: NULL, as the handle has its own";
    refused(result, Status::ARGUMENT, text);
    assert_eq!(comms.calls(0, ALL_REDUCE), 0);
    comms.fail(0, ALL_REDUCE); // it never meets the other rank
    let result = first.allreduce_norm(&mut call.norm);
    let text = "ncclAllReduce: invalid argument (4)";
    refused(result, Status::DEVICE, text);

    let odd = [1f32; 5 * COLUMNS]; // 5 tokens of 2 ranks
    let mut out = [[0f32; 5 * COLUMNS]; 2];
    let mut sequences = Vec::new();
    for (handle, out) in handles.iter().zip(&mut out) {
        let norm = Norm::rms(0.0)
            .x(Tensor::new(&odd, &[5, COLUMNS])?)
            .y(TensorMut::new(out, &[5, COLUMNS])?);
        sequences.push(NcclCall::new(handle, NcclSequenceNorm::new(norm)));
    }
    let result = first.sequence_norm(&mut sequences[0].norm);
    refused(result, Status::SHAPE, "a multiple of the 2 ranks");
    let result = nccl_sequence_norm_all(&mut sequences);
    refused(result, Status::SHAPE, "args[0]: x has");
    Ok(())
}
