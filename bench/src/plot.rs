//! Charts as SVG: bars to the median, with a whisker from the 10th to the 90th percentile; and lines.

use std::fmt::Write;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its label.
    pub label: String,
    /// End of the bar.
    pub median: f64,
    /// Start of the whisker.
    pub p10: f64,
    /// End of the whisker.
    pub p90: f64,
}

/// A line: values of successive steps.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Its label.
    pub label: &'a str,
    /// The values.
    pub values: &'a [f64],
}

/// All in pixels.
const WIDTH: f64 = 860.0;
const LABELS: f64 = 330.0;
const VALUES: f64 = 90.0;
const ROW: f64 = 28.0;
const BAR: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 30.0;

/// Space of lines, between its margins, and what is above each other in it.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const SPACE: f64 = 220.0;
const LEGEND: f64 = 20.0;
const LEGEND_WIDTH: f64 = 200.0;
const COLOURS: [&str; 4] = ["#b5473c", "#4a90a4", "#7a9e3d", "#8a6bb0"];

/// Steps of an axis are these times a power of ten.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];
/// Most steps that can be distinguished.
const STEPS_MAX: f64 = 6.0;

/// Draws the chart.
#[must_use]
pub fn bars(title: &str, unit: &str, bars: &[Bar]) -> String {
    let height = TOP + ROW * bars.len() as f64 + BOTTOM;
    let most = bars
        .iter()
        .map(|bar| bar.median.max(bar.p90))
        .fold(0.0, f64::max);
    let scale = (WIDTH - LABELS - VALUES) / if most > 0.0 { most } else { 1.0 };
    let mut svg = begin(title, height);
    axis(&mut svg, unit, most, scale, height);
    for (index, bar) in bars.iter().enumerate() {
        draw(&mut svg, bar, TOP + ROW * index as f64, scale);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws lines, whose steps are of that unit.
#[must_use]
pub fn lines(title: &str, unit: &str, lines: &[Line<'_>]) -> String {
    let space = Space::of(lines);
    let mut svg = begin(title, space.bottom + BOTTOM);
    space.grid(&mut svg, unit);
    for (index, line) in lines.iter().enumerate() {
        space.draw(&mut svg, index, line);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Where lines are drawn.
struct Space {
    /// The greatest value.
    most: f64,
    /// The last step, and pixels of a step.
    last: f64,
    scale: f64,
    bottom: f64,
}

impl Space {
    fn of(lines: &[Line<'_>]) -> Self {
        let values = lines.iter().flat_map(|line| line.values.iter().copied());
        let steps = lines.iter().map(|line| line.values.len()).max();
        let last = (steps.unwrap_or_default().max(2) - 1) as f64;
        Self {
            most: values.fold(1.0, f64::max),
            last,
            scale: (WIDTH - LEFT - RIGHT) / last,
            bottom: TOP + LEGEND + SPACE,
        }
    }

    fn x(&self, step: f64) -> f64 {
        LEFT + step * self.scale
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - value / self.most * SPACE
    }

    fn grid(&self, svg: &mut String, unit: &str) {
        for at in ticks(self.most) {
            let (y, text) = (self.y(at), number(at));
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#dde3e6\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\" \
                 fill=\"#5c6b73\">{text}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
            );
        }
        for at in ticks(self.last) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" \
                 fill=\"#5c6b73\">{} {}</text>",
                self.x(at),
                self.bottom + 16.0,
                number(at),
                escape(unit)
            );
        }
    }

    fn draw(&self, svg: &mut String, index: usize, line: &Line<'_>) {
        let colour = COLOURS[index % COLOURS.len()];
        let points = line.values.iter().enumerate();
        let points: Vec<_> = points
            .map(|(step, &value)| format!("{:.1},{:.1}", self.x(step as f64), self.y(value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>\
             <text x=\"{:.1}\" y=\"{TOP:.1}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            LEFT + LEGEND_WIDTH * index as f64,
            escape(line.label)
        );
    }
}

/// Where an axis has lines.
fn ticks(most: f64) -> impl Iterator<Item = f64> {
    let step = step(most);
    (0..)
        .map(move |index| f64::from(index) * step)
        .take_while(move |&at| at <= most)
}

fn begin(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\" fill=\"#1b2a33\">{}</text>\n",
        escape(title)
    )
}

fn axis(svg: &mut String, unit: &str, most: f64, scale: f64, height: f64) {
    let bottom = height - BOTTOM;
    for value in ticks(most) {
        let x = LABELS + value * scale;
        let text = number(value);
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#dde3e6\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" \
             fill=\"#5c6b73\">{text}</text>",
            TOP - 4.0,
            bottom + 16.0,
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\" \
         fill=\"#5c6b73\">{}</text>",
        WIDTH - 12.0,
        bottom + 16.0,
        escape(unit)
    );
}

fn draw(svg: &mut String, bar: &Bar, top: f64, scale: f64) {
    let middle = top + ROW / 2.0;
    let at = |value: f64| LABELS + value * scale;
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#1b2a33\">{}</text>\
         <rect x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"#4a90a4\"/>",
        LABELS - 10.0,
        middle + 4.0,
        escape(&bar.label),
        middle - BAR / 2.0,
        (bar.median * scale).max(1.0),
    );
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1} {middle:.1}H{:.1}M{:.1} {:.1}v8M{:.1} {:.1}v8\" stroke=\"#17333d\" \
         fill=\"none\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#1b2a33\">{}</text>",
        at(bar.p10),
        at(bar.p90),
        at(bar.p10),
        middle - 4.0,
        at(bar.p90),
        middle - 4.0,
        at(bar.p90.max(bar.median)) + 8.0,
        middle + 4.0,
        number(bar.median)
    );
}

/// Distance of an axis's lines.
fn step(most: f64) -> f64 {
    if !(most > 0.0 && most.is_finite()) {
        return 1.0;
    }
    let least = most / STEPS_MAX;
    let power = 10_f64.powf(least.log10().floor());
    let fits = STEPS
        .into_iter()
        .map(|step| step * power)
        .find(|&step| step >= least);
    fits.unwrap_or(10.0 * power)
}

/// With three significant digits; all digits before the decimal point.
#[must_use]
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        size if size < 0.1 => 4,
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        let texts = [0.0, 0.0123, 0.1234, 1.234, 12.34, 123.4, 12345.6].map(number);
        assert_eq!(
            texts,
            ["0", "0.0123", "0.123", "1.23", "12.3", "123", "12346"]
        );
    }

    #[test]
    fn texts_are_escaped() {
        let bar = Bar {
            label: "a < b & c".to_owned(),
            median: 1.0,
            p10: 0.5,
            p90: 2.0,
        };
        let svg = bars("t", "ms", &[bar]);
        assert!(svg.contains("a &lt; b &amp; c") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn lines_stay_within_their_space() {
        let line = |label, values| Line { label, values };
        let svg = lines("t", "s", &[line("a", &[0.0, 3.0, 1.5]), line("b & c", &[])]);
        let top = TOP + LEGEND;
        let points = format!("points=\"60.0,{:.1} 450.0,{top:.1} 840.0,", top + SPACE);
        assert!(svg.contains(&points) && svg.contains("b &amp; c"), "{svg}");
        // None at all.
        assert!(lines("t", "s", &[]).trim_end().ends_with("</svg>"));
    }

    proptest! {
        #[test]
        fn axes_have_few_steps(most in 1e-6_f64..1e9) {
            let count = most / step(most);
            prop_assert!((1.0..=STEPS_MAX + 1e-6).contains(&count), "{count}");
        }

        #[test]
        fn nothing_leaves_the_picture(values in prop::collection::vec(0.0_f64..1e6, 0..8)) {
            let list: Vec<_> = values
                .iter()
                .map(|&median| Bar { label: "x".into(), median, p10: median / 2.0, p90: median * 2.0 })
                .collect();
            let svg = bars("t", "ms", &list);
            for part in svg.split(" x=\"").skip(1) {
                let x: f64 = part.split('"').next().unwrap().parse().unwrap();
                prop_assert!((0.0..=WIDTH).contains(&x), "{x}");
            }
        }
    }
}
