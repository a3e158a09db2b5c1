//! The report for a browser: one file that needs nothing else, neither a network nor a script. The plots are SVG, drawn
//! here ([`svg`], [`plot`], [`bars`]); [`figures`] says what is plotted, [`page`] lays it all out.

mod bars;
mod figures;
mod page;
mod plot;
mod style;
mod summary;
mod svg;

pub(crate) use self::page::page;
pub(crate) use self::summary::summary;
