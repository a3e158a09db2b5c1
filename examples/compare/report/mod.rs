//! The HTML report: one self-contained file without scripts. The plots are SVG ([`svg`], [`plot`], [`bars`]);
//! [`figures`] defines what is plotted, [`page`] the layout.

mod bars;
mod figures;
mod page;
mod plot;
mod style;
mod summary;
mod svg;

pub(crate) use self::page::page;
pub(crate) use self::summary::summary;
