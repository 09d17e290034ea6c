//! Small line charts as SVG, one panel below the other, readable on a light and on a dark page.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

/// One chart.
pub(crate) struct Panel {
    /// What is drawn, with its unit.
    pub(crate) title: String,
    /// The lines, each with its name.
    pub(crate) lines: Vec<Line>,
}

/// Points from left to right.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// How the horizontal axis is divided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Across {
    /// Evenly, in seconds.
    Seconds,
    /// By powers of ten, in rows.
    Rows,
}

const WIDTH: f64 = 760.0;
const PANEL: f64 = 190.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 28.0;
/// Of lines, in this order; told apart on white and on black, and by those who see no red or green.
const COLOURS: [&str; 6] = ["#3b82f6", "#e07b00", "#0f9d8a", "#c2479e", "#8b7cf6", "#8a8f98"];

/// Writes the panels to a file.
pub(crate) fn write(path: &Path, across: Across, panels: &[Panel]) -> Result<()> {
    let height = PANEL * f64::from(u32::try_from(panels.len())?);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"11\" fill=\"#7d8590\">\n"
    );
    let mut top = 0.0;
    for panel in panels {
        draw(&mut svg, panel, across, top);
        top += PANEL;
    }
    svg.push_str("</svg>\n");
    std::fs::write(path, svg)?;
    println!("wrote {}", path.display());
    Ok(())
}

fn draw(svg: &mut String, panel: &Panel, across: Across, top: f64) {
    let points = || panel.lines.iter().flat_map(|line| line.points.iter().copied());
    let scaled = |x: f64| if across == Across::Rows { x.log10() } else { x };
    let least = points().map(|(x, _)| scaled(x)).fold(f64::INFINITY, f64::min);
    let most = points().map(|(x, _)| scaled(x)).fold(f64::NEG_INFINITY, f64::max);
    let highest = round_up(points().map(|(_, y)| y).fold(0.0, f64::max));
    let (wide, high) = (WIDTH - LEFT - RIGHT, PANEL - TOP - BOTTOM);
    let x_of = |x: f64| LEFT + (scaled(x) - least) / (most - least).max(f64::EPSILON) * wide;
    let y_of = |y: f64| top + TOP + (1.0 - y / highest) * high;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.0}\" font-size=\"13\" font-weight=\"600\">{}</text>",
        top + 18.0,
        escaped(&panel.title)
    );
    for part in [0.0, 0.5, 1.0] {
        let (y, value) = (y_of(highest * part), highest * part);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}h{wide}\" stroke=\"#7d8590\" stroke-opacity=\".3\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            short(value)
        );
    }
    let mut marks: Vec<f64> = points().map(|(x, _)| x).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let every = marks.len().div_ceil(6).max(1);
    for x in marks.iter().step_by(every) {
        let unit = if across == Across::Seconds { " s" } else { "" };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}{unit}</text>",
            x_of(*x),
            top + PANEL - 10.0,
            short(*x)
        );
    }
    for (nth, line) in panel.lines.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let path: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y))).collect();
        let ends_at = line.points.last().map_or(0.0, |(_, y)| *y);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/><text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{} ({})</text>",
            path.join(" "),
            WIDTH - RIGHT + 12.0,
            f64::from(u32::try_from(nth).unwrap_or_default()).mul_add(16.0, top + TOP + 8.0),
            escaped(&line.name),
            short(ends_at)
        );
    }
}

/// The next of 1, 2, 5, 10, 20 …
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let tens = 10.0_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * tens).find(|step| *step >= value).unwrap_or(value)
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1_000_000.0 => format!("{:.4}M", value / 1_000_000.0).replace(".0000", ""),
        value if value >= 10_000.0 => format!("{:.0}k", value / 1_000.0),
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
