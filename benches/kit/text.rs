//! Text tables and number formats.

use std::fmt::Write;

pub(crate) fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.iter().map(|cell| cell.to_string()).collect()
}

/// Formats rows as aligned columns: those in `left` are left-aligned, the others right-aligned.
pub(crate) fn lay_out(rows: &[Vec<String>], left: &[usize]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = match left.contains(&column) {
                true => write!(line, " {cell:<width$} "),
                false => write!(line, " {cell:>width$} "),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// 12345.6 as `12.3k`, 1234.5 as `1235`; `-` for NaN.
pub(crate) fn thousands(count: f64) -> String {
    match count {
        count if count.is_nan() => "-".into(),
        count if count >= 1e6 => format!("{:.2}M", count / 1e6),
        count if count >= 1e4 => format!("{:.1}k", count / 1e3),
        count => format!("{count:.0}"),
    }
}

/// A lateness; negative values are shown as early.
pub(crate) fn lateness(late: f64) -> String {
    match late < 0.0 {
        true => format!("{} early", nanos(-late)),
        false => nanos(late),
    }
}

/// A duration with three digits, in a suitable unit.
pub(crate) fn nanos(nanos: f64) -> String {
    let (value, unit) = match nanos {
        nanos if nanos.is_nan() => return "-".into(),
        nanos if nanos >= 1e9 => (nanos / 1e9, "s"),
        nanos if nanos >= 1e6 => (nanos / 1e6, "ms"),
        nanos if nanos >= 1e3 => (nanos / 1e3, "us"),
        nanos => (nanos, "ns"),
    };
    match value {
        value if value >= 100.0 || unit == "ns" => format!("{value:.0} {unit}"),
        value if value >= 10.0 => format!("{value:.1} {unit}"),
        value => format!("{value:.2} {unit}"),
    }
}

pub(crate) fn micros(micros: f64) -> String {
    nanos(micros * 1e3)
}

/// `1.07`, or `-`.
pub(crate) fn ratio(ratio: f64) -> String {
    match ratio.is_nan() {
        true => "-".into(),
        false => format!("{ratio:.2}"),
    }
}

/// 64 as `64 B`, 1024 as `1 KiB`.
pub(crate) fn bytes(count: f64) -> String {
    match count {
        count if count.is_nan() => "-".into(),
        count if count >= 1024.0 * 1024.0 => format!("{:.1} MiB", count / 1024.0 / 1024.0),
        count if count >= 10240.0 => format!("{:.0} KiB", count / 1024.0),
        count if count >= 1024.0 && count % 1024.0 == 0.0 => format!("{:.0} KiB", count / 1024.0),
        count if count >= 1024.0 => format!("{:.1} KiB", count / 1024.0),
        count => format!("{count:.0} B"),
    }
}
