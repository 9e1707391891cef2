//! What descriptions share: views of tensors, each with a slot, flags, and lists of parts.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

use crate::sys;
use crate::tensor::View;

/// The most parts of a call whose addresses stay on the stack; the library takes no more.
pub(crate) const PARTS: usize = 8;

/// The tensors of a description, each in a slot; those that are not set take no time.
#[derive(Clone, Copy)]
pub(crate) struct Views<const SLOTS: usize> {
    views: [MaybeUninit<View>; SLOTS], // written where `set` has the slot's bit
    set: u32,
}

impl<const SLOTS: usize> Views<SLOTS> {
    #[inline]
    pub(crate) fn new() -> Self {
        const { assert!(SLOTS <= 32) };
        Self {
            views: [const { MaybeUninit::uninit() }; SLOTS],
            set: 0,
        }
    }

    #[inline]
    pub(crate) fn put(&mut self, slot: usize, view: View) {
        view.write_to(&mut self.views[slot]);
        self.set |= 1 << slot;
    }

    /// Whether this slot or one after it is set.
    #[inline]
    pub(crate) fn has_from(&self, slot: usize) -> bool {
        self.set >> slot != 0
    }

    /// Points the argument at its tensor, and that at its shape, until the views are moved. Leaves
    /// alone what is not set.
    #[inline]
    pub(crate) fn link(&mut self, slot: usize, argument: &mut *const sys::fastnorm_tensor) {
        if self.set >> slot & 1 != 0 {
            // SAFETY: `put` wrote the view when it set the bit.
            *argument = unsafe { self.views[slot].assume_init_mut() }.link();
        }
    }

    /// Shows a tensor that is set.
    pub(crate) fn show(&self, slot: usize, name: &str, shown: &mut fmt::DebugStruct<'_, '_>) {
        if self.set >> slot & 1 != 0 {
            // SAFETY: as in `link`.
            shown.field(name, unsafe { self.views[slot].assume_init_ref() });
        }
    }
}

/// How Debug shows a kind.
pub(crate) fn kind_name(kind: sys::fastnorm_norm_kind) -> &'static str {
    if kind == sys::FASTNORM_NORM_LAYER {
        "layer"
    } else {
        "rms"
    }
}

#[inline]
pub(crate) fn set_flag(flags: &mut u32, flag: u32, on: bool) {
    *flags = if on { *flags | flag } else { *flags & !flag };
}

/// Links all parts and hands the addresses of their arguments, and their count, to `call`.
#[inline]
pub(crate) fn with_linked<P, A, R>(
    parts: &mut [P],
    link: impl Fn(&mut P) -> *const A,
    call: impl FnOnce(*const *const A, i32) -> R,
) -> R {
    let count = i32::try_from(parts.len()).unwrap_or(i32::MAX);
    if parts.len() <= PARTS {
        let mut addresses = [ptr::null(); PARTS];
        for (address, part) in addresses.iter_mut().zip(parts) {
            *address = link(part);
        }
        call(addresses.as_ptr(), count)
    } else {
        let addresses: Vec<_> = parts.iter_mut().map(link).collect();
        call(addresses.as_ptr(), count)
    }
}
